"""The part of a window that hangs together: what lies behind a long hole in the data is another story."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from playbooks.grid import Grid
from playbooks.verdict import Event

LEAST_GAP_MS = 300_000
"""A hole must exceed PromQL's lookback, through which a series is taken to go on (policy)."""
LONG_GAP_MS = 3_600_000
LONG_SHARE = 0.2
"""A hole counts beyond an hour, or beyond this share of the window (policy)."""


def last_stretch(view: Any, grid: Grid) -> tuple[Grid, tuple[Event, ...]]:
    """The grid from behind the last long hole in which no source at all has data, and an event that says so.

    A window without such a hole, or whose baseline lies in another window, is as it was.
    """
    gap = _last_gap(view, grid)
    if gap is None or grid.against_ms is not None:
        return grid, ()
    before, after = gap
    says = f"no data for {_span(after - before)} before this: only what came after it was diagnosed"
    return replace(grid, start_ms=after), (Event(after, "gap", {}, says),)


def _last_gap(view: Any, grid: Grid) -> tuple[int, int] | None:
    store = getattr(view, "store", None)
    axes = [frame.times for frame in store.frames if frame.times.size] if store is not None else []
    if not axes:
        return None
    times = np.unique(np.concatenate(axes)) if len(axes) > 1 else axes[0]
    times = times[(times >= grid.start_ms) & (times <= grid.end_ms)]
    steps = np.diff(times)
    least = max(LEAST_GAP_MS, 10 * grid.interval_ms)
    long = (steps > least) & ((steps > LONG_GAP_MS) | (steps > LONG_SHARE * (grid.end_ms - grid.start_ms)))
    found = np.flatnonzero(long)
    return (int(times[found[-1]]), int(times[found[-1] + 1])) if found.size else None


def _span(ms: int) -> str:
    for unit, size in (("days", 86_400_000), ("h", 3_600_000)):
        if ms >= 2 * size:
            return f"{ms / size:.0f} {unit}"
    return f"{ms / 60_000:.0f} min"
