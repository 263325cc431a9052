"""Where in time an expression can have an answer at all: what lies outside need not be evaluated."""

from __future__ import annotations

from probes.promql.ast import At, Call, Expr, MatrixSelector, Subquery, VectorSelector, walk
from probes.promql.context import Context

_FROM_NOTHING = frozenset({"absent", "absent_over_time", "scalar", "vector"})
"""Functions that answer where there is no series; those without an argument (``time()``) are of this kind, too."""


def reach(ctx: Context, expr: Expr) -> tuple[int, int] | None:
    """First and last moment (ms) at which ``expr`` may hold a sample; None when the data alone does not tell.

    Generous: offsets and ranges anywhere in the expression are added up. An empty span (last before first) says that
    there is no series.
    """
    nodes = list(walk(expr))
    if any(isinstance(node, Call) and (not node.args or node.func in _FROM_NOTHING) for node in nodes):
        return None
    if any(_at(node) is not None for node in nodes):
        return None
    found = [s for node in nodes if isinstance(node, VectorSelector) for s in ctx.store.select(node.all_matchers)]
    axes = [selection.frame.times for selection in found if selection.frame.times.size]
    if not axes:
        return 1, 0
    offsets = [node.offset_ms for node in nodes if isinstance(node, VectorSelector | Subquery)]
    ranges = sum(node.range_ms for node in nodes if isinstance(node, MatrixSelector | Subquery))
    first = min(int(axis[0]) for axis in axes) + sum(min(0, offset) for offset in offsets)
    last = max(int(axis[-1]) for axis in axes) + sum(max(0, offset) for offset in offsets)
    return first, last + ranges + ctx.lookback_ms


def _at(node: Expr) -> At:
    return node.at if isinstance(node, VectorSelector | Subquery) else None
