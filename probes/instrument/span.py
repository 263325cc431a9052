"""What a call site holds while its operation runs: the no-op, and the one that only counts."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from types import TracebackType

from probes.instrument.operation import Operation

Attribute = str | bool | int | float


class Span:
    """A span that records nothing; also what all spans offer.

    ``with`` for work that keeps its thread; ``async with`` for work that awaits in between (its NVTX range is then a
    start/end range: push and pop of interleaved tasks would close each other's).
    """

    __slots__ = ()

    @property
    def traceparent(self) -> str:
        """What to send along, so that the receiver continues this trace; empty when nothing is traced."""
        return ""

    @property
    def trace_id(self) -> str | None:
        """32 hex digits for an exemplar; None when this span is not recorded."""
        return None

    def set(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes (`kv.*`, `rpc.*`), known only now."""

    def link(self, traceparent: str) -> None:
        """Point at another span that this one has to do with, though it is not its child."""

    def result(self, result: str) -> None:
        """How it ended, where no exception tells: one of `operation.RESULTS`."""

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def __aenter__(self) -> Span:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


NO_SPAN = Span()
"""The one no-op: what every call site gets while nothing is switched on."""


class CountedSpan(Span):
    """Counters only: two clock readings and a bucket."""

    __slots__ = ("_began", "_meter", "_result")

    def __init__(self, meter: Operation) -> None:
        self._meter = meter
        self._result = "ok"

    def result(self, result: str) -> None:
        self._result = result

    def __enter__(self) -> Span:
        self._meter.inflight += 1
        self._began = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        meter = self._meter
        meter.done(perf_counter() - self._began, self._result if failure is None else meter.result_of(failure), None)

    async def __aenter__(self) -> Span:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, failure, trace)
