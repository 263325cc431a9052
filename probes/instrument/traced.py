"""A span that is traced: OpenTelemetry, NVTX, or both, and the counters beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from time import perf_counter_ns, time_ns
from types import TracebackType
from typing import TYPE_CHECKING

from probes.instrument.context import SAMPLED, TraceContext, render
from probes.instrument.operation import Operation
from probes.instrument.ranges import Ranges
from probes.instrument.span import Attribute, Span

if TYPE_CHECKING:
    from probes.instrument.otel import Tracing

ENTRIES = ("client", "server", "consumer")
_NONE = TraceContext(0, 0, 0)
_current: ContextVar[TracedSpan | None] = ContextVar("kvscope_span", default=None)


def current_traceparent() -> str:
    """That of our own span that is current in this thread or task; empty for none."""
    span = _current.get()
    return span.traceparent if span is not None else ""


class TracedSpan(Span):
    """Records while it runs; when it has ended it is its own record, which nobody changes any more."""

    __slots__ = (
        "_meter",
        "_range",
        "_ranges",
        "_started",
        "_token",
        "_tracing",
        "attributes",
        "began_ns",
        "blocks",
        "context",
        "ended",
        "ended_ns",
        "error",
        "kind",
        "links",
        "name",
        "parent",
        "parent_id",
        "remote",
        "scope",
    )

    def __init__(
        self,
        scope: str,
        name: str,
        kind: str,
        parent: str,
        blocks: int,
        links: Sequence[str],
        attributes: Mapping[str, Attribute],
        meter: Operation | None,
        tracing: Tracing | None,
        ranges: Ranges | None,
    ) -> None:
        self.scope = scope
        self.name = name
        self.kind = kind
        self.parent = parent
        self.blocks = blocks
        self.links = links
        self.attributes = attributes
        self._meter = meter
        self._tracing = tracing
        self._ranges = ranges
        self.context = _NONE
        self.parent_id = 0
        self.remote = False
        self.ended = "ok"
        self.error = ("", "")
        """Kind and text of the exception that ended it: the exception would keep its frames, and their arrays."""

    @property
    def traceparent(self) -> str:
        """The 55 bytes that make a receiver's span a child of this one."""
        return render(*self.context) if self.context.trace_id else ""

    @property
    def trace_id(self) -> str | None:
        """For an exemplar: only a trace that somebody keeps is worth naming."""
        return f"{self.context.trace_id:032x}" if self.context.flags & SAMPLED else None

    def set(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes."""
        self.attributes = {**self.attributes, **attributes}

    def link(self, traceparent: str) -> None:
        """Point at another span; an invalid `traceparent` is left out."""
        self.links = (*self.links, traceparent)

    def result(self, result: str) -> None:
        """How it ended, where no exception tells."""
        self.ended = result

    def __enter__(self) -> Span:
        self._open()
        if self._ranges is not None:
            self._ranges.push(self.name, self.blocks)
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
            self._range = self._ranges.start(self.name, self.blocks)
            self._mark(self._ranges)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ranges is not None:
            self._ranges.end(self._range)
        self._close(failure)

    def _open(self) -> None:
        if self._meter is not None:
            self._meter.inflight += 1
        if self._tracing is not None:
            self._tracing.begin(self, _current.get())
            self._token: Token[TracedSpan | None] = _current.set(self)
        self.began_ns, self._started = time_ns(), perf_counter_ns()

    def _mark(self, ranges: Ranges) -> None:
        if self._tracing is not None:
            ranges.identify(self.context.trace_id, self.context.span_id, self.kind in ENTRIES)

    def _close(self, failure: BaseException | None) -> None:
        """The end by the steady clock: a wall clock that is set meanwhile lengthens no span."""
        took_ns = perf_counter_ns() - self._started
        meter = self._meter
        if failure is not None:
            self.ended = meter.result_of(failure) if meter is not None else "error"
            self.error = (str(getattr(failure, "reason", type(failure).__qualname__)), str(failure))
        if meter is not None:
            meter.done(took_ns / 1e9, self.ended, self.trace_id)
        if self._tracing is not None:
            _current.reset(self._token)
            if self.context.flags & SAMPLED:
                self.ended_ns = self.began_ns + took_ns
                self._tracing.end(self)
