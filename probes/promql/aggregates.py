"""Aggregations over labels (Prometheus promql/engine.go, aggregation)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from probes.columns import Floats, Mask, Rows, Times
from probes.labels import NAME, Labels
from probes.promql.ast import Aggregate, StringLiteral
from probes.promql.context import Context
from probes.promql.errors import PromQLError
from probes.promql.kernels import quantile
from probes.promql.ranges import bare
from probes.promql.relabel import LABEL_NAME
from probes.promql.settle import merged
from probes.promql.value import Inputs, Scalar, Vector
from probes.promql.windows import by_count
from probes.records import dataclass

_Wide: TypeAlias = NDArray[np.longdouble]


@dataclass(frozen=True, slots=True)
class Groups:
    """``order`` [S] sorts rows by group; group ``g`` is ``order[starts[g]:starts[g + 1]]``, labelled ``labels[g]``."""

    labels: tuple[Labels, ...]
    order: Rows
    starts: Rows

    def members(self) -> list[Rows]:
        return np.split(self.order, self.starts[1:])


def group(labels: Sequence[Labels], grouping: tuple[str, ...] | None, without: bool) -> Groups:
    """Group label sets ``by`` or ``without`` names; no clause puts all into one."""
    numbers: dict[Labels, int] = {}
    dropped = (*(grouping or ()), NAME)
    ids = np.empty(len(labels), dtype=np.intp)
    for i, found in enumerate(labels):
        key = found.without(dropped) if without else found.only(grouping or ())
        ids[i] = numbers.setdefault(key, len(numbers))
    order = np.argsort(ids, kind="stable")
    return Groups(tuple(numbers), order, np.searchsorted(ids[order], np.arange(len(numbers))))


def aggregate(ctx: Context, node: Aggregate, times: Times) -> Vector:
    """Evaluate an aggregation at all steps."""
    vector = ctx.eval(node.expr, times)
    if not isinstance(vector, Vector):
        raise PromQLError(f"{node.op} needs an instant vector, not {node.expr}")
    if not vector.labels:
        return vector
    key = ("group", vector.labels, node.grouping, node.without)
    groups = ctx.cache.get(key, lambda: group(vector.labels, node.grouping, node.without))
    if node.op == "count_values":
        return _count_values(node, vector, groups)
    if node.op in ("topk", "bottomk"):
        return _extremes(vector, groups, _numbers(ctx, node, times), node.op == "topk")
    oldest, inputs = _provenance(vector, groups)
    if node.op == "quantile":
        values, present = _quantile(vector, groups, _numbers(ctx, node, times))
    else:
        values, present = _fold(node.op, vector, groups, ctx.closed)
    return Vector(groups.labels, times, values, present, oldest, inputs).pruned()


def _numbers(ctx: Context, node: Aggregate, times: Times) -> Floats:
    value = None if node.param is None else ctx.eval(node.param, times)
    if not isinstance(value, Scalar):
        raise PromQLError(f"{node.op} needs a number as its first argument")
    return value.values


def _provenance(vector: Vector, groups: Groups) -> tuple[Times | None, Inputs | None]:
    if vector.oldest is None or vector.inputs is None:
        return None, None
    latest = np.iinfo(np.int64).max
    times = np.where(vector.present, vector.oldest, latest)[groups.order]
    oldest = np.minimum.reduceat(times, groups.starts, axis=0)
    empty: frozenset[Labels] = frozenset()
    inputs = tuple(empty.union(*(vector.inputs[i] for i in rows.tolist())) for rows in groups.members())
    return oldest, inputs


def _fold(op: str, vector: Vector, groups: Groups, prometheus_2: bool) -> tuple[Floats, Mask]:
    held = vector.present[groups.order]
    count: Floats = np.add.reduceat(held.astype(np.float64), groups.starts, axis=0)
    present = count > 0
    given = vector.values[groups.order]
    if op == "count":
        return count, present
    if op == "group":
        return np.ones(count.shape), present
    if op in ("min", "max"):
        best = np.fmin if op == "min" else np.fmax
        values: Floats = best.reduceat(np.where(held, given, np.nan), groups.starts, axis=0)
        return values, present
    # Extended precision stands in for Prometheus' compensated sums.
    wide: _Wide = np.where(held, given, 0.0).astype(np.longdouble)
    total: _Wide = np.add.reduceat(wide, groups.starts, axis=0)
    if op == "sum":
        return total.astype(np.float64), present
    divisor = np.where(present, count, 1.0)
    mean: _Wide = total / divisor
    if op == "avg":
        return mean.astype(np.float64), present
    sizes = np.diff(np.append(groups.starts, len(groups.order)))
    distance: _Wide = np.where(held, wide - np.repeat(mean, sizes, axis=0), 0.0)
    variance: Floats = (np.add.reduceat(distance * distance, groups.starts, axis=0) / divisor).astype(np.float64)
    if prometheus_2:
        # Prometheus 2 starts from the first element as the mean, so a lone Inf or NaN has variance 0.
        variance = np.where(count == 1, 0.0, variance)
    return (np.sqrt(variance) if op == "stddev" else variance), present


def _quantile(vector: Vector, groups: Groups, q: Floats) -> tuple[Floats, Mask]:
    values = np.zeros((len(groups.labels), vector.times.size))
    present = np.zeros(values.shape, dtype=bool)
    for number, rows in enumerate(groups.members()):
        given, held = vector.values[rows], vector.present[rows]
        for columns, order in by_count(held):
            values[number, columns] = quantile(q[columns], np.take_along_axis(given[:, columns], order, axis=0))
            present[number, columns] = True
    return values, present


def _extremes(vector: Vector, groups: Groups, limits: Floats, largest: bool) -> Vector:
    """``topk`` and ``bottomk``: NaN only where nothing else is left; at one step the rows come sorted."""
    present = np.zeros(vector.present.shape, dtype=bool)
    picked: dict[int, None] = {}
    for step in range(vector.times.size):
        limit = limits[step]
        if math.isnan(limit) or math.isinf(limit):
            raise PromQLError(f"scalar value {limit} overflows int64")
        for rows in groups.members():
            here = rows[vector.present[rows, step]]
            given = vector.values[here, step]
            ranked = here[np.argsort(-given if largest else given, kind="stable")]
            for row in ranked[: max(0, int(limit))].tolist():
                picked[row] = None
                present[row, step] = True
    rows = np.fromiter(picked, dtype=np.intp, count=len(picked))
    kept = vector.take(rows)
    return Vector(kept.labels, kept.times, kept.values, present[rows], kept.oldest, kept.inputs)


def _count_values(node: Aggregate, vector: Vector, groups: Groups) -> Vector:
    param = None if node.param is None else bare(node.param)
    if not isinstance(param, StringLiteral):
        raise PromQLError("count_values needs a label name as its first argument")
    name = param.value
    if LABEL_NAME.match(name) is None:
        raise PromQLError(f"invalid label name {name!r} in count_values")
    rows: dict[Labels, Floats] = {}
    behind: dict[Labels, list[int]] = {}
    for labels, members in zip(groups.labels, groups.members(), strict=True):
        for row in members.tolist():
            for step in np.flatnonzero(vector.present[row]).tolist():
                key = labels.replace(**{name: decimal(float(vector.values[row, step]))})
                rows.setdefault(key, np.zeros(vector.times.size))[step] += 1
                if not behind.setdefault(key, []) or behind[key][-1] != row:
                    behind[key].append(row)
    counts = np.array(list(rows.values())).reshape(len(rows), vector.times.size)
    oldest, inputs = None, None
    if vector.oldest is not None and vector.inputs is not None:
        empty: frozenset[Labels] = frozenset()
        oldest = np.array([vector.oldest[same].min(axis=0) for same in behind.values()]).reshape(counts.shape)
        inputs = tuple(empty.union(*(vector.inputs[i] for i in same)) for same in behind.values())
    return merged(Vector(tuple(rows), vector.times, counts, counts > 0, oldest, inputs))


def decimal(value: float) -> str:
    """A float as Go's ``FormatFloat(v, 'f', -1, 64)`` writes it: shortest, no exponent."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return np.format_float_positional(value, trim="-")
