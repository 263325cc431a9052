"""Calls of range functions: selector or subquery in, vector out."""

from __future__ import annotations

import numpy as np

from probes.columns import Floats, Times
from probes.promql.absence import absent_labels, absent_vector
from probes.promql.ast import Call, Expr, MatrixSelector, Paren, Subquery
from probes.promql.context import Context
from probes.promql.errors import PromQLError
from probes.promql.kernels import kernel_of
from probes.promql.limits import check_cells
from probes.promql.selectors import grids, joined, moments, too_large
from probes.promql.settle import SAME_LABELS, in_turn
from probes.promql.signatures import KEEP_NAME
from probes.promql.value import Scalar, Vector
from probes.promql.windows import Outcome, Steps, apply


def bare(expr: Expr) -> Expr:
    """Without parentheses around it."""
    while isinstance(expr, Paren):
        expr = expr.expr
    return expr


def call_range(ctx: Context, node: Call, times: Times) -> Vector:
    """Evaluate one of ``signatures.OVER_RANGE``."""
    ranges = [bare(arg) for arg in node.args]
    source = next((arg for arg in ranges if isinstance(arg, MatrixSelector | Subquery)), None)
    if source is None:
        raise PromQLError(f"{node.func} needs a range vector")
    if isinstance(source, MatrixSelector) and _too_large(ctx, source, times):
        return in_turn([call_range(ctx, node, part) for part in np.array_split(times, 2)])
    parameter = next((_numbers(ctx, arg, times) for arg in ranges if arg is not source), None)
    found, steps = grids(ctx, source, times)
    check_cells(times.size, sum(len(grid.labels) for grid in found))
    steps = Steps(steps.at, steps.start, steps.end, parameter)
    kernel, minimum = kernel_of(node.func, ctx.closed)
    outcomes = [apply(grid, steps, ctx.closed, kernel, minimum) for grid in found]
    if node.func == "absent_over_time":
        return _absent(ctx, source, times, outcomes)
    if not found:
        return Vector.empty(times, ctx.track)
    keep = node.func in KEEP_NAME
    labels = joined([grid.labels if keep else grid.unnamed for grid in found])
    values = np.concatenate([o.values for o in outcomes], axis=1).T
    present = np.concatenate([o.present for o in outcomes], axis=1).T
    oldest = np.concatenate([o.newest for o in outcomes], axis=1).T if ctx.track else None
    inputs = tuple(frozenset((name,)) for grid in found for name in grid.labels) if ctx.track else None
    vector = Vector(labels, times, values, present, oldest, inputs).pruned()
    if not ctx.cache.get(("unique", vector.labels), lambda: len(set(vector.labels)) == len(vector.labels)):
        raise PromQLError(SAME_LABELS)
    return vector


def _too_large(ctx: Context, source: MatrixSelector, times: Times) -> bool:
    if times.size == 1:
        return False
    looks = moments(ctx, times, source.selector.offset_ms, source.selector.at)
    return too_large(ctx.store.select(source.selector.all_matchers), looks, source.range_ms)


def _numbers(ctx: Context, expr: Expr, times: Times) -> Floats:
    value = ctx.eval(expr, times)
    if not isinstance(value, Scalar):
        raise PromQLError(f"expected a number, not {expr}")
    return value.values


def _absent(ctx: Context, source: MatrixSelector | Subquery, times: Times, outcomes: list[Outcome]) -> Vector:
    there = np.zeros(times.size, dtype=bool)
    for outcome in outcomes:
        there |= outcome.present.any(axis=1)
    selector = source.selector if isinstance(source, MatrixSelector) else None
    return absent_vector(ctx, absent_labels(selector), times, ~there)
