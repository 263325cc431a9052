"""Selectors and subqueries: from the store to vectors and grids."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from probes.columns import ABSENT, Floats, Rows, Times, blank, is_absent, is_sample
from probes.labels import Labels
from probes.promql.ast import At, MatrixSelector, Subquery, VectorSelector
from probes.promql.context import Context
from probes.promql.errors import PromQLError
from probes.promql.limits import check_cells, check_inner_steps
from probes.promql.reach import reach
from probes.promql.settle import in_turn
from probes.promql.value import Matrix, Vector
from probes.promql.windows import Grid, Steps
from probes.series import Selection

_LOOK_BLOCK = 16
_MOST_CELLS = 4_000_000
"""32 MB of samples: more steps than that needs are evaluated in two halves."""


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
    selections = ctx.store.select(node.all_matchers)
    check_cells(looks.size, sum(selection.rows.size for selection in selections))
    if too_large(selections, looks, ctx.lookback_ms):
        halves = [select_instant(ctx, node, part) for part in np.array_split(times, 2)]
        return in_turn([vector for vector, _ in halves]), _sample_times(halves)
    if not selections:
        return Vector.empty(times, ctx.track), np.empty((0, times.size), dtype=np.int64)
    if times.size == 1:
        names, values, when = _at_once(ctx, selections, int(looks[0]))
    else:
        names, values, when = _at_each(ctx, selections, looks)
    present = is_sample(values)
    inputs = tuple(frozenset((found,)) for found in names) if ctx.track else None
    vector = Vector(names, times, values, present, when if ctx.track else None, inputs)
    alive = present.any(axis=1)
    if not alive.all():
        kept = np.flatnonzero(alive)
        return vector.take(kept), when[kept]
    return vector, when


def too_large(selections: list[Selection], looks: Times, reach_ms: int) -> bool:
    """Whether the samples behind several steps are too many to be laid side by side at once."""
    if looks.size == 1:
        return False
    start, end = int(looks.min()) - reach_ms, int(looks.max())
    cells = 0
    for selection in selections:
        axis = selection.frame.times
        columns = int(axis.searchsorted(end, side="right")) - int(axis.searchsorted(start, side="left"))
        cells += columns * selection.rows.size
    return cells > _MOST_CELLS


def _sample_times(halves: list[tuple[Vector, Times]]) -> Times:
    """The sample times of halves, in the rows of their union."""
    as_values = [Vector(v.labels, v.times, when.astype(np.float64), v.present) for v, when in halves]
    return in_turn(as_values).values.astype(np.int64)


def _window(ctx: Context, axis: Times, look: int) -> tuple[int, int]:
    """Columns that a lookback from ``look`` reaches: first, and one past the last."""
    high = int(axis.searchsorted(look, side="right"))
    low = int(axis.searchsorted(look - ctx.lookback_ms, side="left" if ctx.closed else "right"))
    return min(low, high), high


def _at_once(ctx: Context, selections: list[Selection], look: int) -> tuple[tuple[Labels, ...], Floats, Times]:
    """One moment: the newest column of each frame, and a search backwards for the series that it lacks."""
    parts, moments_ = [], []
    for selection in selections:
        axis = selection.frame.times
        low, high = _window(ctx, axis, look)
        if high == low:
            parts.append(blank(selection.rows.size))
            moments_.append(np.zeros(selection.rows.size, dtype=np.int64))
            continue
        values = selection.frame.column(high - 1, selection.rows)
        when = np.full(values.size, axis[high - 1])
        missing = np.flatnonzero(is_absent(values))
        if missing.size:
            _search(selection, missing, low, high - 1, values, when)
        parts.append(values)
        moments_.append(when)
    names = joined([selection.labels for selection in selections])
    return names, np.concatenate(parts)[:, None], np.concatenate(moments_)[:, None]


def _search(selection: Selection, missing: Rows, low: int, high: int, values: Floats, when: Times) -> None:
    """Fill ``values`` and ``when`` of the ``missing`` series from columns ``low`` up to ``high``, newest first."""
    axis = selection.frame.times
    while missing.size and high > low:
        start = max(low, high - _LOOK_BLOCK)
        block = selection.frame.window(start, high, selection.rows[missing])
        held = ~is_absent(block)
        last = block.shape[0] - 1 - held[::-1].argmax(axis=0)
        hit = np.flatnonzero(held.any(axis=0))
        values[missing[hit]] = block[last[hit], hit]
        when[missing[hit]] = axis[start + last[hit]]
        missing = np.delete(missing, hit)
        high = start


def _at_each(ctx: Context, selections: list[Selection], looks: Times) -> tuple[tuple[Labels, ...], Floats, Times]:
    """K moments: [S, K]."""
    found = _gathered(selections, int(looks.min()) - ctx.lookback_ms, int(looks.max()))
    if not found:
        return (), np.empty((0, looks.size)), np.empty((0, looks.size), dtype=np.int64)
    picked = [_pick(ctx, grid, looks) for grid in found]
    names = joined([grid.labels for grid in found])
    return names, np.vstack([p[0] for p in picked]), np.vstack([p[1] for p in picked])


def _pick(ctx: Context, grid: Grid, looks: Times) -> tuple[Floats, Times]:
    high = np.searchsorted(grid.times, looks, side="right")
    low = np.searchsorted(grid.times, looks - ctx.lookback_ms, side="left" if ctx.closed else "right")
    ends = np.maximum(high - 1, 0)
    absent = is_absent(grid.values)
    if absent.any():
        numbers = np.arange(grid.times.size)[:, None]
        newest = np.maximum.accumulate(np.where(absent, -1, numbers), axis=0)[ends]
    else:
        newest = np.broadcast_to(ends[:, None], (looks.size, len(grid.labels)))
    valid = (newest >= low[:, None]) & (high > low)[:, None]
    column = np.where(valid, newest, 0)
    values = np.where(valid, np.take_along_axis(grid.values, column, axis=0), ABSENT)
    return np.ascontiguousarray(values.T), np.ascontiguousarray(grid.times[column].T)


def _gathered(selections: list[Selection], start: int, end: int) -> list[Grid]:
    """Samples from ``start`` to ``end``, both included; frames that were scraped at the same times share a grid."""
    groups: list[tuple[Times, list[Selection], list[tuple[int, int]]]] = []
    for selection in selections:
        axis = selection.frame.times
        low, high = int(axis.searchsorted(start, side="left")), int(axis.searchsorted(end, side="right"))
        if high <= low:
            continue
        part = axis[low:high]
        if groups and groups[-1][0].size == part.size and bool((groups[-1][0] == part).all()):
            groups[-1][1].append(selection)
            groups[-1][2].append((low, high))
        else:
            groups.append((part, [selection], [(low, high)]))
    found = []
    for part, some, spans in groups:
        blocks = [s.frame.window(low, high, s.rows) for s, (low, high) in zip(some, spans, strict=True)]
        values = blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)
        found.append(Grid(joined([s.labels for s in some]), joined([s.unnamed for s in some]), part, values))
    return found


def joined(parts: list[tuple[Labels, ...]]) -> tuple[Labels, ...]:
    """Label sets of several frames, one after the other."""
    return parts[0] if len(parts) == 1 else tuple(name for part in parts for name in part)


def grids(ctx: Context, node: MatrixSelector | Subquery, times: Times) -> tuple[list[Grid], Steps]:
    """The samples that the windows of a range cover, a grid a frame, and the windows themselves."""
    source = node if isinstance(node, Subquery) else node.selector
    end = moments(ctx, times, source.offset_ms, source.at)
    steps = Steps(times, end - node.range_ms, end)
    if isinstance(node, Subquery):
        return _subquery(ctx, node, steps), steps
    selections = ctx.store.select(node.selector.all_matchers)
    return _gathered(selections, int(steps.start.min()), int(end.max())), steps


def _subquery(ctx: Context, node: Subquery, steps: Steps) -> list[Grid]:
    """Evaluate the inner expression at the multiples of its step that any window covers."""
    axis = _inner_steps(ctx, node, steps)
    if not axis.size:
        return []
    step = node.step_ms or ctx.default_step_ms
    if axis.size != (int(axis[-1]) - int(axis[0])) // step + 1:
        ctx = replace(ctx, shared=None)  # its keys tell evenly spaced steps apart, and these have holes
    inner = ctx.eval(node.expr, axis)
    if not isinstance(inner, Vector):
        raise PromQLError(f"a subquery needs an instant vector, not {node.expr}")
    values = blank((axis.size, len(inner.labels)))
    np.copyto(values, inner.values.T, where=inner.present.T)
    unnamed = tuple(found.unnamed() for found in inner.labels)
    return [Grid(inner.labels, unnamed, axis, values)] if inner.labels else []


def _inner_steps(ctx: Context, node: Subquery, steps: Steps) -> Times:
    """The multiples of the subquery's step inside its windows, as far as there is data; PromQLError for too many."""
    step = node.step_ms or ctx.default_step_ms
    first, last = steps.start if ctx.closed else steps.start + 1, steps.end
    if (span := reach(ctx, node.expr)) is not None:
        first, last = np.maximum(first, span[0]), np.minimum(last, span[1])
    low, high = -(-first // step), last // step
    counts = np.maximum(0, high - low + 1)
    check_inner_steps(int(counts.max()), str(node))
    held = np.flatnonzero(counts)
    if not held.size:
        return np.empty(0, dtype=np.int64)
    low, high = low[held], high[held]
    parts = []
    until = int(low[0]) - 1
    for start, end in zip(low.tolist(), high.tolist(), strict=True):  # both ascend with the steps
        if end > until:
            parts.append(np.arange(max(start, until + 1), end + 1, dtype=np.int64))
            until = end
    check_cells(sum(part.size for part in parts), 1)
    return np.concatenate(parts) * step


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
