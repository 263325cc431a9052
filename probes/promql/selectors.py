"""Selectors and subqueries: from the store to vectors and grids."""

from __future__ import annotations

import numpy as np

from probes.columns import Floats, Mask, Rows, Times, blank, is_absent, is_sample, is_stale
from probes.frame import Frame
from probes.promql.ast import At, MatrixSelector, Subquery, VectorSelector
from probes.promql.context import Context
from probes.promql.errors import PromQLError
from probes.promql.value import Matrix, Vector
from probes.promql.windows import Grid, Steps
from probes.series import Selection

_LOOK_BLOCK = 16


def moments(ctx: Context, times: Times, offset_ms: int, at: At) -> Times:
    """The steps that a selector looks at: ``@`` first, then ``offset``."""
    if at is None:
        return times - offset_ms
    fixed = {"start": ctx.start_ms, "end": ctx.end_ms}[at] if isinstance(at, str) else at
    return np.full(times.size, fixed - offset_ms, dtype=np.int64)


def select_instant(ctx: Context, node: VectorSelector, times: Times) -> tuple[Vector, Times]:
    """The newest sample of each series within the lookback; also its time [S, K] ms.

    A staleness marker ends a series; samples exactly ``lookback`` old count in Prometheus 2 only.
    """
    looks = moments(ctx, times, node.offset_ms, node.at)
    labels, parts = [], []
    for selection in ctx.store.select(node.all_matchers):
        values, present, when = _look(ctx, selection, looks)
        labels.append(selection.labels)
        parts.append((values, present, when))
    if not parts:
        return Vector.empty(times, ctx.track), np.empty((0, times.size), dtype=np.int64)
    names = labels[0] if len(labels) == 1 else tuple(found for some in labels for found in some)
    values = _stack([p[0] for p in parts])
    present = np.vstack([p[1] for p in parts])
    when = np.vstack([p[2] for p in parts])
    inputs = tuple(frozenset((found,)) for found in names) if ctx.track else None
    vector = Vector(names, times, values, present, when if ctx.track else None, inputs)
    alive = present.any(axis=1)
    if not alive.all():
        kept = np.flatnonzero(alive)
        return vector.take(kept), when[kept]
    return vector, when


def _stack(parts: list[Floats]) -> Floats:
    return parts[0] if len(parts) == 1 else np.vstack(parts)


def _look(ctx: Context, selection: Selection, looks: Times) -> tuple[Floats, Mask, Times]:
    """Values, presence and sample times [S, K] of one frame's series."""
    axis = selection.frame.times
    high = np.searchsorted(axis, looks, side="right")
    low = np.searchsorted(axis, looks - ctx.lookback_ms, side="left" if ctx.closed else "right")
    low = np.minimum(low, high)
    if looks.size == 1:
        values, column = _newest(selection.frame, selection.rows, int(low[0]), int(high[0]))
        picked, columns = values[:, None], column[:, None]
    else:
        picked, columns = _newest_each(selection.frame, selection.rows, low, high)
    found = columns >= 0
    present = found & ~is_stale(picked)
    when = axis[np.maximum(columns, 0)] if axis.size else np.zeros(columns.shape, dtype=np.int64)
    return picked, present, when


def _newest(frame: Frame, rows: Rows, low: int, high: int) -> tuple[Floats, Rows]:
    """Newest entry of each row in columns ``low`` up to ``high``, and its column (-1 for none), both [S]."""
    values = blank(rows.size)
    column = np.full(rows.size, -1, dtype=np.intp)
    missing = np.arange(rows.size)
    width = 1
    while missing.size and high > low:
        start = max(low, high - width)
        block = frame.window(start, high, rows[missing])
        held = ~is_absent(block)
        last = block.shape[0] - 1 - held[::-1].argmax(axis=0)
        some = held.any(axis=0)
        hit = np.flatnonzero(some)
        values[missing[hit]] = block[last[hit], hit]
        column[missing[hit]] = start + last[hit]
        missing = missing[~some]
        high, width = start, _LOOK_BLOCK
    return values, column


def _newest_each(frame: Frame, rows: Rows, low: Rows, high: Rows) -> tuple[Floats, Rows]:
    """The same for K windows: [S, K]."""
    first, last = int(low.min()), int(high.max())
    if last <= first:
        shape = (rows.size, low.size)
        return blank(shape), np.full(shape, -1, dtype=np.intp)
    block = frame.window(first, last, rows)
    absent = is_absent(block)
    ends = np.maximum(high - 1 - first, 0)
    if absent.any():
        numbers = np.arange(last - first)[:, None]
        newest = np.maximum.accumulate(np.where(absent, -1, numbers), axis=0)[ends]
    else:
        newest = np.broadcast_to(ends[:, None], (low.size, rows.size))
    valid = (newest >= (low - first)[:, None]) & (high > low)[:, None]
    values = np.take_along_axis(block, np.where(valid, newest, 0), axis=0)
    columns = np.where(valid, newest + first, -1)
    return np.ascontiguousarray(values.T), np.ascontiguousarray(columns.T)


def grids(ctx: Context, node: MatrixSelector | Subquery, times: Times) -> tuple[list[Grid], Steps]:
    """The samples that the windows of a range cover, a grid a frame, and the windows themselves."""
    source = node if isinstance(node, Subquery) else node.selector
    end = moments(ctx, times, source.offset_ms, source.at)
    steps = Steps(times, end - node.range_ms, end)
    if isinstance(node, Subquery):
        return _subquery(ctx, node, steps), steps
    found = []
    for selection in ctx.store.select(node.selector.all_matchers):
        axis = selection.frame.times
        low = int(np.searchsorted(axis, steps.start.min(), side="left"))
        high = int(np.searchsorted(axis, steps.end.max(), side="right"))
        if high > low:
            block = selection.frame.window(low, high, selection.rows)
            found.append(Grid(selection.labels, selection.unnamed, axis[low:high], block))
    return found, steps


def _subquery(ctx: Context, node: Subquery, steps: Steps) -> list[Grid]:
    """Evaluate the inner expression at the multiples of its step that any window covers."""
    step = node.step_ms or ctx.default_step_ms
    start, end = int(steps.start.min()), int(steps.end.max())
    first = -(-start // step) * step
    if not ctx.closed and first == start:
        first += step
    axis = np.arange(first, end + 1, step, dtype=np.int64)
    if not axis.size:
        return []
    inner = ctx.eval(node.expr, axis)
    if not isinstance(inner, Vector):
        raise PromQLError(f"a subquery needs an instant vector, not {node.expr}")
    values = blank((axis.size, len(inner.labels)))
    np.copyto(values, inner.values.T, where=inner.present.T)
    unnamed = tuple(found.unnamed() for found in inner.labels)
    return [Grid(inner.labels, unnamed, axis, values)] if inner.labels else []


def select_matrix(ctx: Context, node: MatrixSelector | Subquery, times: Times) -> Matrix:
    """Raw samples of a bare range at one instant."""
    found, steps = grids(ctx, node, times)
    labels, axes, values = [], [], []
    start, end = int(steps.start[0]), int(steps.end[0])
    for grid in found:
        inside = (grid.times <= end) & ((grid.times >= start) if ctx.closed else (grid.times > start))
        held = is_sample(grid.values) & inside[:, None]
        for i, name in enumerate(grid.labels):
            if held[:, i].any():
                labels.append(name)
                axes.append(grid.times[held[:, i]])
                values.append(grid.values[held[:, i], i])
    return Matrix(tuple(labels), tuple(axes), tuple(values))
