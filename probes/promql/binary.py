"""Binary expressions: scalars, filters and set operators; vector matching is in ``matching.py``."""

from __future__ import annotations

import numpy as np

from probes.columns import Mask, Rows, Times
from probes.labels import NAME, Labels
from probes.promql.ast import COMPARISONS, SET_OPERATORS, Binary, VectorMatching
from probes.promql.context import Context
from probes.promql.errors import PromQLError
from probes.promql.matching import match_vectors
from probes.promql.operators import combine, drops_name
from probes.promql.settle import merged, older, unnamed
from probes.promql.value import Scalar, Value, Vector

_ANY = VectorMatching()


def binary(ctx: Context, node: Binary, times: Times) -> Value:
    """Evaluate a binary expression at all steps."""
    left, right = ctx.eval(node.lhs, times), ctx.eval(node.rhs, times)
    if isinstance(left, Scalar) and isinstance(right, Scalar):
        values, _ = combine(node.op, left.values, right.values, True)
        return Scalar(times, values, older(left.oldest, right.oldest), left.inputs | right.inputs)
    if isinstance(left, Vector) and isinstance(right, Vector):
        matching = node.matching or _ANY
        if node.op in SET_OPERATORS:
            return _set(ctx, node.op, left, right, matching)
        return match_vectors(ctx, node, left, right, matching)
    if isinstance(left, Vector) and isinstance(right, Scalar):
        return _with_scalar(ctx, node, left, right, swapped=False)
    if isinstance(left, Scalar) and isinstance(right, Vector):
        return _with_scalar(ctx, node, right, left, swapped=True)
    raise PromQLError(f"{node.op} needs numbers or instant vectors on both sides")


def _with_scalar(ctx: Context, node: Binary, vector: Vector, scalar: Scalar, *, swapped: bool) -> Vector:
    number = scalar.values[None, :]
    sides = (number, vector.values) if swapped else (vector.values, number)
    values, holds = combine(node.op, *sides, node.return_bool)
    present = vector.present
    filters = node.op in COMPARISONS and not node.return_bool
    if filters:
        values = vector.values
        present = present & holds if holds is not None else present
    oldest = vector.oldest
    inputs = vector.inputs
    if oldest is not None and scalar.oldest is not None:
        oldest = np.minimum(oldest, scalar.oldest[None, :])
    if inputs is not None and scalar.inputs:
        inputs = tuple(some | scalar.inputs for some in inputs)
    made = Vector(vector.labels, vector.times, values, present, oldest, inputs)
    if filters:
        return made.pruned()
    return unnamed(ctx, made) if drops_name(node.op, node.return_bool, ctx.closed) else made


def signature(labels: Labels, matching: VectorMatching) -> Labels:
    """The part of a label set that matching compares."""
    return labels.only(matching.labels) if matching.on else labels.without((*matching.labels, NAME))


def _set(ctx: Context, op: str, left: Vector, right: Vector, matching: VectorMatching) -> Vector:
    if op == "or":
        if not left.labels:
            return right
        if not right.labels:
            return left
        kept = right.present & ~_there(ctx, right, left, matching)
        rest = Vector(right.labels, right.times, right.values, kept, right.oldest, right.inputs).pruned()
        return merged(_joined(left, rest))
    there = _there(ctx, left, right, matching)
    present = left.present & (there if op == "and" else ~there)
    return Vector(left.labels, left.times, left.values, present, left.oldest, left.inputs).pruned()


def _there(ctx: Context, asking: Vector, other: Vector, matching: VectorMatching) -> Mask:
    """Where a row of ``asking`` has a partner in ``other``: [S, K]."""

    def number() -> tuple[Rows, Rows, int]:
        ids: dict[Labels, int] = {}
        codes = [
            np.array([ids.setdefault(signature(found, matching), len(ids)) for found in labels], dtype=np.intp)
            for labels in (other.labels, asking.labels)
        ]
        return codes[0], codes[1], len(ids)

    theirs, ours, count = ctx.cache.get(("set", asking.labels, other.labels, matching), number)
    seen = np.zeros((count, asking.times.size), dtype=bool)
    np.logical_or.at(seen, theirs, other.present)
    found: Mask = seen[ours]
    return found


def _joined(a: Vector, b: Vector) -> Vector:
    if not b.labels:
        return a
    oldest = None if a.oldest is None or b.oldest is None else np.vstack([a.oldest, b.oldest])
    inputs = None if a.inputs is None or b.inputs is None else a.inputs + b.inputs
    values, present = np.vstack([a.values, b.values]), np.vstack([a.present, b.present])
    return Vector(a.labels + b.labels, a.times, values, present, oldest, inputs)
