"""Range windows over a shared time axis, handed to kernels in dense blocks.

A kernel sees only real samples: a block has the shape [n, …] with the window's samples along the first axis.
Windows of equal length go together; series with gaps are compacted and grouped by their sample count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from probes.columns import Floats, Mask, Rows, Times, is_sample
from probes.labels import Labels
from probes.records import dataclass

_BLOCK_ENTRIES = 1 << 19


@dataclass(frozen=True, slots=True)
class Grid:
    """Samples of S series on one axis: ``times`` [T] ms, ``values`` [T, S] with ABSENT and STALE."""

    labels: tuple[Labels, ...]
    unnamed: tuple[Labels, ...]
    times: Times
    values: Floats


@dataclass(frozen=True, slots=True)
class Steps:
    """The windows of K steps: ``at`` evaluation times, ``start`` and ``end`` of the windows, all [K] ms.

    ``parameter`` [K] is a second argument (a quantile, a duration), if the function has one.
    """

    at: Times
    start: Times
    end: Times
    parameter: Floats | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """Dense samples: ``t`` [n, …] ms and ``v`` [n, …]; the rest broadcasts over the trailing axes."""

    t: Times
    v: Floats
    at: Times
    start: Times
    end: Times
    parameter: Floats | None


Kernel: TypeAlias = Callable[[Window], Floats]


def bounds(axis: Times, steps: Steps, closed: bool) -> tuple[Rows, Rows]:
    """First and one-past-last column of each window: (start, end], or [start, end] when ``closed``."""
    low = np.searchsorted(axis, steps.start, side="left" if closed else "right")
    return low, np.maximum(low, np.searchsorted(axis, steps.end, side="right"))


def gaps(values: Floats) -> Mask | None:
    """Where ``values`` hold real samples; None when all do (one pass over a window without any NaN)."""
    if not values.size or not np.isnan(values.min()):
        return None
    mask = is_sample(values)
    return None if mask.all() else mask


@dataclass(slots=True)
class Outcome:
    """Results of a kernel: ``values``, ``present`` and ``newest`` (time of the newest sample), all [K, S]."""

    values: Floats
    present: Mask
    newest: Times


def apply(grid: Grid, steps: Steps, closed: bool, kernel: Kernel, minimum: int) -> Outcome:
    """Run ``kernel`` over every window of every series that holds at least ``minimum`` samples."""
    shape = (steps.at.size, len(grid.labels))
    out = Outcome(np.zeros(shape), np.zeros(shape, dtype=bool), np.zeros(shape, dtype=np.int64))
    low, high = bounds(grid.times, steps, closed)
    mask = gaps(grid.values)
    counts = high - low
    for count in sorted(set(counts.tolist())):  # np.unique would import numpy.ma
        if count < minimum:
            continue
        chosen = np.flatnonzero(counts == count)
        batch = max(1, _BLOCK_ENTRIES // max(1, count * shape[1]))
        for at in range(0, chosen.size, batch):
            part = chosen[at : at + batch]
            _block(grid, steps, part, low[part], count, mask, kernel, minimum, out)
    return out


def _block(
    grid: Grid,
    steps: Steps,
    part: Rows,
    low: Rows,
    count: int,
    mask: Mask | None,
    kernel: Kernel,
    minimum: int,
    out: Outcome,
) -> None:
    """Windows ``part`` (G of them, each ``count`` columns long from ``low``)."""
    if part.size == 1:
        where: slice | Rows = slice(int(low[0]), int(low[0]) + count)
        t, v = grid.times[where][:, None, None], grid.values[where][:, None, :]
    else:
        where = low[None, :] + np.arange(count)[:, None]
        t, v = grid.times[where][:, :, None], grid.values[where]
    parameter = None if steps.parameter is None else steps.parameter[part][:, None]
    at, start, end = steps.at[part][:, None], steps.start[part][:, None], steps.end[part][:, None]
    if mask is not None:
        held = mask[where][:, None, :] if isinstance(where, slice) else mask[where]
        if not held.all():
            _gappy(Window(np.broadcast_to(t, v.shape), v, at, start, end, parameter), held, part, kernel, minimum, out)
            return
    out.values[part] = kernel(Window(t, v, at, start, end, parameter))
    out.present[part] = True
    out.newest[part] = t[-1]


def _gappy(window: Window, held: Mask, part: Rows, kernel: Kernel, minimum: int, out: Outcome) -> None:
    n, steps, series = window.v.shape
    shape = (steps, series)

    def spread(given: Times) -> Times:
        wide: Times = np.broadcast_to(given, shape).reshape(-1)
        return wide

    at, start, end = spread(window.at), spread(window.start), spread(window.end)
    parameter = None if window.parameter is None else np.broadcast_to(window.parameter, shape).reshape(-1)
    values, present, newest = np.zeros(at.size), np.zeros(at.size, dtype=bool), np.zeros(at.size, dtype=np.int64)
    flat_v, flat_t = window.v.reshape(n, -1), window.t.reshape(n, -1)
    for columns, order in by_count(held.reshape(n, -1), minimum):
        v = np.take_along_axis(flat_v[:, columns], order, axis=0)
        t = np.take_along_axis(flat_t[:, columns], order, axis=0)
        some = None if parameter is None else parameter[columns]
        values[columns] = kernel(Window(t, v, at[columns], start[columns], end[columns], some))
        present[columns] = True
        newest[columns] = t[-1]
    out.values[part] = values.reshape(shape)
    out.present[part] = present.reshape(shape)
    out.newest[part] = newest.reshape(shape)


def by_count(held: Mask, minimum: int = 1) -> Iterator[tuple[Rows, Rows]]:
    """Columns of ``held`` [n, C] grouped by how many entries they hold.

    Yields (columns [c], order [count, c]): ``order`` names the held entries of each column in their order.
    """
    counts = held.sum(axis=0)
    front = np.argsort(~held, axis=0, kind="stable")
    for count in sorted(set(counts.tolist())):  # np.unique would import numpy.ma
        if count >= minimum and count > 0:
            columns = np.flatnonzero(counts == count)
            yield columns, front[:count, columns]
