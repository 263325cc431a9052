"""The counters of one kind of operation: how many run, how they ended, how long they took."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probes.instrument.histogram import Histogram

RESULTS = ("ok", "refused", "error")


def every_failure_is_an_error(failure: BaseException) -> str:
    """The rule of an `Operation` that was given none."""
    return "error"


class Operation:
    """Plain integers, fed by `Instrument.span(..., meter=operation)`."""

    __slots__ = ("inflight", "name", "result_of", "results", "seconds")

    def __init__(
        self,
        name: str,
        bounds: Sequence[float],
        result_of: Callable[[BaseException], str] = every_failure_is_an_error,
    ) -> None:
        """`bounds` in seconds; `result_of` tells a refusal from an error by the exception that ended a span."""
        self.name = name
        self.seconds = Histogram(bounds)
        self.results = dict.fromkeys(RESULTS, 0)
        self.inflight = 0
        self.result_of = result_of

    def done(self, seconds: float, result: str, trace_id: str | None) -> None:
        """One operation ended; raises KeyError for a result that is none of `RESULTS`."""
        self.inflight -= 1
        self.results[result] += 1
        self.seconds.observe(seconds, trace_id)
