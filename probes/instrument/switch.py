"""Which instruments are on, and the call sites that follow it."""

from __future__ import annotations

import importlib
import logging
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from probes.instrument import ranges
from probes.instrument.operation import Operation
from probes.instrument.span import NO_SPAN, Attribute, CountedSpan, Span
from probes.instrument.traced import TracedSpan

if TYPE_CHECKING:
    from typing import Protocol

    from probes.instrument.otel import Tracing

    class Begin(Protocol):
        """The type of `Instrument.span`."""

        def __call__(
            self,
            name: str,
            *,
            kind: str = ...,
            parent: str = ...,
            blocks: int = ...,
            meter: Operation | None = ...,
            links: Sequence[str] = ...,
            attributes: Mapping[str, Attribute] = ...,
        ) -> Span: ...


TRACES = ("otel", "nvtx")
OFF = ("", "off", "none", "0")
NOTHING: Mapping[str, Attribute] = {}
_log = logging.getLogger("kvscope.instrument")


class InstrumentError(ValueError):
    """What was asked for cannot be switched on; one line says what to do."""


@dataclass(frozen=True, slots=True)
class Switches:
    """What is on."""

    otel: bool = False
    nvtx: bool = False
    counters: bool = True
    file: str = ""
    service: str = "kvstore"
    instance: str = ""

    @classmethod
    def read(cls, trace: str, counters: bool, file: str, service: str, instance: str) -> Switches:
        """From the words of ``KVSTORE_TRACE``; raises InstrumentError for an unknown one."""
        words = [word.strip().lower() for word in trace.split(",")]
        unknown = [word for word in words if word not in TRACES and word not in OFF]
        if unknown:
            raise InstrumentError(f"KVSTORE_TRACE: unknown {unknown[0]!r}; known are otel, nvtx (with a comma) and off")
        return cls("otel" in words, "nvtx" in words, counters, file, service, instance)


class Begun(NamedTuple):
    """Spans and ranges that this process began since `configure`."""

    spans: int
    ranges: int


class _Choice:
    """What this process chose: once, at start (or when the first call site runs)."""

    def __init__(self) -> None:
        self.made = False
        self.tracing: Tracing | None = None
        self.ranges: ranges.Ranges | None = None
        self.counters = True
        self.sites: weakref.WeakSet[Instrument] = weakref.WeakSet()


_choice = _Choice()


def configure(
    trace: str | None = None,
    *,
    counters: bool | None = None,
    file: str | None = None,
    service: str = "kvstore",
    instance: str = "",
) -> Switches:
    """Switch instruments on or off in this process; what is not given comes from the environment.

    Call it once, before there is work: `service` and `instance` become the resource of every span. Raises
    InstrumentError where a word is unknown, a package is missing or the trace file cannot be opened.
    """
    environ = os.environ
    wanted = Switches.read(
        environ.get("KVSTORE_TRACE", "") if trace is None else trace,
        environ.get("KVSTORE_COUNTERS", "on").lower() not in OFF if counters is None else counters,
        environ.get("KVSTORE_TRACE_FILE", "") if file is None else file,
        service,
        instance,
    )
    shutdown()
    _choice.tracing = _tracing(wanted) if wanted.otel else None
    _choice.ranges = _ranges() if wanted.nvtx else None
    _choice.counters = wanted.counters
    _choice.made = True
    for site in _choice.sites:
        site.span = site._chosen()
    return wanted


@contextmanager
def silenced() -> Iterator[None]:
    """All call sites as if everything were off, for a while: what instruments cost is measured against this."""
    before = [(site, site.span) for site in _choice.sites]
    for site, _ in before:
        site.span = _nothing
    try:
        yield
    finally:
        for site, span in before:
            site.span = span


def shutdown() -> None:
    """Send the spans that wait. Spans that begin afterwards are lost until `configure` is called again."""
    if _choice.tracing is not None:
        _choice.tracing.close()


def begun() -> Begun:
    """How many spans and ranges this process began: a check that instruments see every operation."""
    tracing, ranges_ = _choice.tracing, _choice.ranges
    return Begun(tracing.begun if tracing else 0, ranges_.begun if ranges_ else 0)


def _tracing(wanted: Switches) -> Tracing:
    try:
        from probes.instrument.otel import Tracing

        return Tracing(wanted.service, wanted.instance, wanted.file)
    except ImportError as error:
        raise InstrumentError(
            f"KVSTORE_TRACE=otel: {error.name or error} is not installed: pip install '.[trace]' in kvscope's checkout"
        ) from None
    except OSError as error:
        raise InstrumentError(f"KVSTORE_TRACE_FILE: {wanted.file}: {error.strerror}") from None


def _ranges() -> ranges.Ranges | None:
    """None where no profiler started this process: then a range would cost something and reach nobody."""
    if not ranges.attached():
        return None
    try:
        nvtx = importlib.import_module("nvtx")
    except ImportError:
        raise InstrumentError(
            "KVSTORE_TRACE=nvtx: nvtx is not installed: pip install '.[trace]' in kvscope's checkout"
        ) from None
    return ranges.Ranges(nvtx)


class Instrument:
    """The call sites of one part of the store; `scope` names it ("kvstore.shard")."""

    def __init__(self, scope: str) -> None:
        self.scope = scope
        self.span: Begin = self._chosen()
        _choice.sites.add(self)

    def _chosen(self) -> Begin:
        if not _choice.made:
            return self._first
        if _choice.tracing is not None or _choice.ranges is not None:
            return self._traced
        return _counted if _choice.counters else _nothing

    def _first(
        self,
        name: str,
        *,
        kind: str = "internal",
        parent: str = "",
        blocks: int = 0,
        meter: Operation | None = None,
        links: Sequence[str] = (),
        attributes: Mapping[str, Attribute] = NOTHING,
    ) -> Span:
        """The first operation of a process that never called `configure`: the environment decides, and never raises."""
        try:
            configure()
        except InstrumentError as error:
            _log.error("%s: tracing stays off", error)
            configure("off")
        return self.span(name, kind=kind, parent=parent, blocks=blocks, meter=meter, links=links, attributes=attributes)

    def _traced(
        self,
        name: str,
        *,
        kind: str = "internal",
        parent: str = "",
        blocks: int = 0,
        meter: Operation | None = None,
        links: Sequence[str] = (),
        attributes: Mapping[str, Attribute] = NOTHING,
    ) -> Span:
        counted = meter if _choice.counters else None
        return TracedSpan(
            self.scope, name, kind, parent, blocks, links, attributes, counted, _choice.tracing, _choice.ranges
        )


def _counted(
    name: str,
    *,
    kind: str = "internal",
    parent: str = "",
    blocks: int = 0,
    meter: Operation | None = None,
    links: Sequence[str] = (),
    attributes: Mapping[str, Attribute] = NOTHING,
) -> Span:
    return NO_SPAN if meter is None else CountedSpan(meter)


def _nothing(
    name: str,
    *,
    kind: str = "internal",
    parent: str = "",
    blocks: int = 0,
    meter: Operation | None = None,
    links: Sequence[str] = (),
    attributes: Mapping[str, Attribute] = NOTHING,
) -> Span:
    return NO_SPAN
