"""Calls of functions that take instant vectors, scalars and strings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from probes.columns import Floats, Times
from probes.labels import Labels
from probes.promql.absence import absent_labels, absent_vector
from probes.promql.ast import Call, Expr, StringLiteral, VectorSelector
from probes.promql.context import Context
from probes.promql.errors import PromQLError
from probes.promql.histogram import histogram_quantile
from probes.promql.ranges import bare
from probes.promql.relabel import label_join, label_replace
from probes.promql.selectors import select_instant
from probes.promql.settle import unnamed, with_values
from probes.promql.signatures import unsupported
from probes.promql.value import Scalar, Value, Vector

_MATHS: dict[str, Callable[[Floats], Floats]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "exp": np.exp,
    "ln": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "sqrt": np.sqrt,
    "sgn": lambda v: np.where(v == 0, v, np.sign(v)),
}


def call_function(ctx: Context, node: Call, times: Times) -> Value:
    """Evaluate a function that is not one of a range."""
    if node.func in _MATHS:
        vector = _vector(ctx, node.args[0], times)
        return unnamed(ctx, with_values(vector, _MATHS[node.func](vector.values)))
    found = _CALLS.get(node.func)
    if found is None:
        raise PromQLError(unsupported("function", node.func))
    return found(ctx, node, times)


def _vector(ctx: Context, expr: Expr, times: Times) -> Vector:
    value = ctx.eval(expr, times)
    if not isinstance(value, Vector):
        raise PromQLError(f"expected an instant vector, not {expr}")
    return value


def _scalar(ctx: Context, expr: Expr, times: Times) -> Scalar:
    value = ctx.eval(expr, times)
    if not isinstance(value, Scalar):
        raise PromQLError(f"expected a number, not {expr}")
    return value


def _text(expr: Expr) -> str:
    plain = bare(expr)
    if not isinstance(plain, StringLiteral):
        raise PromQLError(f"expected a string, not {expr}")
    return plain.value


def _round(ctx: Context, node: Call, times: Times) -> Value:
    vector = _vector(ctx, node.args[0], times)
    nearest = _scalar(ctx, node.args[1], times).values[None, :] if len(node.args) > 1 else 1.0
    # The inverse keeps round(x, 0.1) exact where 0.1 is not (Prometheus promql/functions.go, funcRound).
    inverse = 1.0 / np.asarray(nearest, dtype=np.float64)
    return unnamed(ctx, with_values(vector, np.floor(vector.values * inverse + 0.5) / inverse))


def _clamp(ctx: Context, node: Call, times: Times) -> Value:
    vector = _vector(ctx, node.args[0], times)
    limits = [_scalar(ctx, arg, times).values[None, :] for arg in node.args[1:]]
    if node.func == "clamp_min":
        return unnamed(ctx, with_values(vector, np.maximum(vector.values, limits[0])))
    if node.func == "clamp_max":
        return unnamed(ctx, with_values(vector, np.minimum(vector.values, limits[0])))
    low, high = limits
    values = np.maximum(low, np.minimum(high, vector.values))
    present = vector.present & ~(high < low)
    kept = Vector(vector.labels, times, values, present, vector.oldest, vector.inputs)
    return unnamed(ctx, kept).pruned()


def _absent(ctx: Context, node: Call, times: Times) -> Value:
    absent = np.asarray(~_vector(ctx, node.args[0], times).present.any(axis=0))
    argument = bare(node.args[0])
    labels = absent_labels(argument if isinstance(argument, VectorSelector) else None)
    return absent_vector(ctx, labels, times, absent)


def _to_scalar(ctx: Context, node: Call, times: Times) -> Value:
    vector = _vector(ctx, node.args[0], times)
    counts = vector.present.sum(axis=0)
    values = np.full(times.size, np.nan)
    if vector.labels:
        rows = vector.present.argmax(axis=0)
        values = np.where(counts == 1, vector.values[rows, np.arange(times.size)], np.nan)
    if not ctx.track or vector.oldest is None or vector.inputs is None or not vector.labels:
        return Scalar(times, values)
    latest = np.iinfo(np.int64).max
    oldest = np.where(vector.present, vector.oldest, latest).min(axis=0)
    inputs: frozenset[Labels] = frozenset().union(*vector.inputs)
    return Scalar(times, values, oldest, inputs)


def _to_vector(ctx: Context, node: Call, times: Times) -> Value:
    scalar = _scalar(ctx, node.args[0], times)
    oldest = None
    if ctx.track:
        oldest = (times if scalar.oldest is None else np.minimum(times, scalar.oldest))[None, :].copy()
    inputs = (scalar.inputs,) if ctx.track else None
    present = np.ones((1, times.size), dtype=bool)
    return Vector((Labels.of(),), times, scalar.values[None, :], present, oldest, inputs)


def _time(ctx: Context, node: Call, times: Times) -> Value:
    return Scalar(times, times / 1000)


def _timestamp(ctx: Context, node: Call, times: Times) -> Value:
    argument = bare(node.args[0])
    if isinstance(argument, VectorSelector):
        vector, when = select_instant(ctx, argument, times)
        return unnamed(ctx, with_values(vector, when / 1000))
    vector = _vector(ctx, argument, times)
    return unnamed(ctx, with_values(vector, np.broadcast_to(times / 1000, vector.values.shape).copy()))


def _sort(ctx: Context, node: Call, times: Times) -> Value:
    vector = _vector(ctx, node.args[0], times)
    if times.size != 1 or not vector.labels:
        return vector
    keys = vector.values[:, 0]
    return vector.take(np.argsort(-keys if node.func == "sort_desc" else keys, kind="stable"))


def _quantile(ctx: Context, node: Call, times: Times) -> Value:
    q = _scalar(ctx, node.args[0], times).values
    return histogram_quantile(ctx, q, _vector(ctx, node.args[1], times))


def _replace(ctx: Context, node: Call, times: Times) -> Value:
    target, replacement, source, pattern = (_text(arg) for arg in node.args[1:])
    return label_replace(ctx, _vector(ctx, node.args[0], times), target, replacement, source, pattern)


def _join(ctx: Context, node: Call, times: Times) -> Value:
    target, separator, *sources = (_text(arg) for arg in node.args[1:])
    return label_join(ctx, _vector(ctx, node.args[0], times), target, separator, tuple(sources))


_CALLS: dict[str, Callable[[Context, Call, Times], Value]] = {
    "round": _round,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    "absent": _absent,
    "scalar": _to_scalar,
    "vector": _to_vector,
    "time": _time,
    "timestamp": _timestamp,
    "sort": _sort,
    "sort_desc": _sort,
    "histogram_quantile": _quantile,
    "label_replace": _replace,
    "label_join": _join,
}
