"""When the questions are asked: the steps of an analysis window."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

MIN_WINDOW_MS = 60_000
MAX_STEPS = 90


@dataclass(frozen=True, slots=True)
class Grid:
    """Steps from the first moment with a filled ``$window`` to the end of the window, ``step_ms`` apart.

    ``interval_ms`` is the scrape interval. ``$window`` is four intervals and at least a minute, but never more than
    the data that there is. ``against_ms`` shifts the baseline back in time; without it the baseline is the first
    quarter of the window, when the window is long enough to have an earlier part. ``max_steps`` bounds the work: a
    screen that asks again every few seconds needs fewer steps than a report.
    """

    start_ms: int
    end_ms: int
    interval_ms: int
    against_ms: int | None = None
    range_ms: int | None = None
    max_steps: int = MAX_STEPS

    @property
    def window_ms(self) -> int:
        if self.range_ms is not None:
            return self.range_ms
        return max(4 * self.interval_ms, MIN_WINDOW_MS)

    @property
    def step_ms(self) -> int:
        usable = max(0, self.end_ms - self.first_ms)
        coarse = -(-usable // self.max_steps)
        return max(self.interval_ms, -(-coarse // self.interval_ms) * self.interval_ms)

    @property
    def first_ms(self) -> int:
        return min(self.end_ms, self.start_ms + self.window_ms)

    @property
    def times(self) -> NDArray[np.int64]:
        """The steps, ending exactly at ``end_ms``."""
        count = (self.end_ms - self.first_ms) // self.step_ms + 1
        return self.end_ms - self.step_ms * np.arange(count - 1, -1, -1, dtype=np.int64)

    @property
    def baseline(self) -> NDArray[np.bool_] | None:
        """Which steps are the earlier part; None when there is none to compare with."""
        span = self.end_ms - self.start_ms
        if span < 3 * self.window_ms:
            return None
        return self.times <= self.start_ms + max(self.window_ms, span // 4)

    def finer(self) -> Grid:
        """The same window asked with the shortest useful range: for finding the onset."""
        return replace(self, range_ms=max(3 * self.interval_ms, 5_000))

    def shifted(self, by_ms: int) -> Grid:
        return replace(self, start_ms=self.start_ms - by_ms, end_ms=self.end_ms - by_ms)

    def fill(self, expr: str) -> str:
        """Fill in ``$window``, ``$interval``, ``$span`` (all of it) and ``$recent`` (four intervals, at least 30 s)."""
        span = max(self.window_ms, self.end_ms - self.start_ms)
        recent = max(4 * self.interval_ms, 30_000)
        if self.range_ms:  # the onset is not asked with half a minute's delay
            recent = min(recent, self.range_ms)
        filled = (("$window", self.window_ms), ("$span", span), ("$recent", recent), ("$interval", self.interval_ms))
        for name, size in filled:
            expr = expr.replace(name, prom_duration(size))
        return expr


def prom_duration(ms: int) -> str:
    """A PromQL duration: ``90s``, ``5m``, ``1500ms``."""
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms % size == 0 and ms:
            return f"{ms // size}{unit}"
    return f"{ms}ms"
