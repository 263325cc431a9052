"""A histogram of plain integers, each bucket with room for one exemplar. Read at scrape time, by whoever renders it.

One thread writes, any thread may read: `snapshot` copies. Buckets are Prometheus's: a value belongs to the first bound
that is not below it (``le``).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple


class Exemplar(NamedTuple):
    """The last traced value of a bucket; `at` in seconds since the epoch."""

    trace_id: str
    value: float
    at: float


class HistogramState(NamedTuple):
    """A copy: `counts` has one entry a bound and one above the last, not cumulative."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    exemplars: tuple[Exemplar | None, ...]


class Histogram:
    """Counts of values by bucket, and their sum."""

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` rise strictly and are finite; the bucket above the last one is implied. Raises ValueError."""
        self.bounds = tuple(float(bound) for bound in bounds)
        if not self.bounds or any(not a < b for a, b in zip(self.bounds, self.bounds[1:], strict=False)):
            raise ValueError(f"histogram bounds must rise: {self.bounds}")
        if self.bounds[-1] == float("inf"):
            raise ValueError("the bucket above the last bound is implied; leave +Inf out")
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        self.exemplars: list[Exemplar | None] = [None] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self.counts)

    def observe(self, value: float, exemplar_trace_id: str | None = None, times: int = 1) -> None:
        """Count `value`, `times` over. NaN is no value: it is left out."""
        if value != value:
            return
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += times
        self.total += value * times
        if exemplar_trace_id:
            self.exemplars[bucket] = Exemplar(exemplar_trace_id, value, time.time())

    def observe_many(self, values: Any, exemplar_trace_id: str | None = None) -> None:
        """Count every value of a NumPy array (or a sequence) at once; the exemplar goes to the largest."""
        import numpy as np

        column = np.asarray(values, dtype=np.float64).ravel()
        column = column[~np.isnan(column)]
        if not column.size:
            return
        found = np.bincount(np.searchsorted(self.bounds, column, side="left"), minlength=len(self.counts))
        self.counts = [have + more for have, more in zip(self.counts, found.tolist(), strict=True)]
        self.total += float(column.sum())
        if exemplar_trace_id:
            largest = float(column.max())
            self.exemplars[bisect_left(self.bounds, largest)] = Exemplar(exemplar_trace_id, largest, time.time())

    def merge(self, counts: Sequence[int], total: float) -> None:
        """Add what another histogram of the same bounds counted (one entry a bucket). Raises ValueError."""
        if len(counts) != len(self.counts):
            raise ValueError(f"{len(counts)} buckets do not fit {len(self.counts)}")
        self.counts = [have + int(more) for have, more in zip(self.counts, counts, strict=True)]
        self.total += total

    def take(self) -> tuple[list[int], float]:
        """What was counted since the last `take`, and start again: what one process reports to another."""
        counts, total = self.counts, self.total
        self.counts, self.total = [0] * len(counts), 0.0
        return counts, total

    def snapshot(self) -> HistogramState:
        """A copy to render from."""
        return HistogramState(self.bounds, tuple(self.counts), self.total, tuple(self.exemplars))
