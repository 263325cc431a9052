"""A span that is traced: OpenTelemetry, NVTX, or both, and the counters beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from probes.instrument.context import render
from probes.instrument.operation import Operation
from probes.instrument.ranges import Ranges
from probes.instrument.span import Attribute, Span

if TYPE_CHECKING:
    from probes.instrument.otel import Tracing

ENTRIES = ("client", "server", "consumer")


class Call(NamedTuple):
    """What a call site said."""

    scope: str
    name: str
    kind: str
    parent: str
    blocks: int
    links: Sequence[str]
    attributes: Mapping[str, Attribute]


class TracedSpan(Span):
    """Records while it runs; what it is made of was decided when tracing was switched on."""

    __slots__ = ("_began", "_call", "_meter", "_otel", "_range", "_ranges", "_result", "_token", "_tracing")

    def __init__(self, call: Call, tracing: Tracing | None, ranges: Ranges | None, meter: Operation | None) -> None:
        self._call = call
        self._tracing = tracing
        self._ranges = ranges
        self._meter = meter
        self._result = ""
        self._otel: Any = None
        self._token: Any = None

    @property
    def traceparent(self) -> str:
        """The 55 bytes that make a receiver's span a child of this one."""
        if self._otel is None:
            return ""
        found = self._otel.get_span_context()
        return render(found.trace_id, found.span_id, found.trace_flags)

    @property
    def trace_id(self) -> str | None:
        """For an exemplar: only a trace that somebody keeps is worth naming."""
        if self._otel is None or not self._otel.is_recording():
            return None
        return f"{self._otel.get_span_context().trace_id:032x}"

    def set(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes."""
        if self._otel is not None:
            self._otel.set_attributes(attributes)

    def link(self, traceparent: str) -> None:
        """Point at another span; an invalid `traceparent` is left out."""
        if self._otel is not None:
            from probes.instrument.otel import span_context

            found = span_context(traceparent)
            if found is not None:
                self._otel.add_link(found)

    def result(self, result: str) -> None:
        """How it ended, where no exception tells."""
        self._result = result

    def __enter__(self) -> Span:
        self._open()
        if self._ranges is not None:
            self._ranges.push(self._call.name, self._call.blocks)
            self._mark(self._ranges)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ranges is not None:
            self._ranges.pop()
        self._close(failure)

    async def __aenter__(self) -> Span:
        self._open()
        if self._ranges is not None:
            self._range = self._ranges.start(self._call.name, self._call.blocks)
            self._mark(self._ranges)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ranges is not None:
            self._ranges.end(self._range)
        self._close(failure)

    def _open(self) -> None:
        meter, call = self._meter, self._call
        if meter is not None:
            meter.inflight += 1
            self._began = perf_counter()
        if self._tracing is not None:
            self._otel = self._tracing.begin(call)
            self._token = self._tracing.enter(self._otel)

    def _mark(self, ranges: Ranges) -> None:
        if self._otel is not None:
            found = self._otel.get_span_context()
            ranges.identify(found.trace_id, found.span_id, self._call.kind in ENTRIES)

    def _close(self, failure: BaseException | None) -> None:
        meter, otel = self._meter, self._otel
        result = self._result or "ok"
        if failure is not None:
            result = meter.result_of(failure) if meter is not None else "error"
        if meter is not None:
            meter.done(perf_counter() - self._began, result, self.trace_id)
        if otel is not None and self._tracing is not None:
            self._tracing.end(otel, self._token, result, failure)
