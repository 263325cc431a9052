"""Label sets of results: dropped names, and the rule that one step may not hold a label set twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probes.columns import Floats, Times
from probes.labels import Labels
from probes.promql.context import Context
from probes.promql.errors import PromQLError
from probes.promql.value import Vector

SAME_LABELS = "vector cannot contain metrics with the same labelset"


def unnamed(ctx: Context, vector: Vector) -> Vector:
    """Drop the metric name; PromQLError when that makes two series one at some step."""
    labels, unique = ctx.cache.get(("unnamed", vector.labels), lambda: _strip(vector.labels))
    made = relabelled(vector, labels)
    return made if unique else merged(made)


def _strip(labels: Sequence[Labels]) -> tuple[tuple[Labels, ...], bool]:
    bare = tuple(found.unnamed() for found in labels)
    return bare, len(set(bare)) == len(bare)


def relabelled(vector: Vector, labels: tuple[Labels, ...]) -> Vector:
    return Vector(labels, vector.times, vector.values, vector.present, vector.oldest, vector.inputs)


def with_values(vector: Vector, values: Floats) -> Vector:
    return Vector(vector.labels, vector.times, values, vector.present, vector.oldest, vector.inputs)


def merged(vector: Vector) -> Vector:
    """Rows with equal labels become one row, when no step holds two of them; else PromQLError."""
    if len(set(vector.labels)) == len(vector.labels):
        return vector
    rows: dict[Labels, list[int]] = {}
    for i, labels in enumerate(vector.labels):
        rows.setdefault(labels, []).append(i)
    firsts = [same[0] for same in rows.values()]
    out = vector.take(firsts)
    inputs = list(out.inputs) if out.inputs is not None else None
    for place, same in enumerate(rows.values()):
        if len(same) == 1:
            continue
        if (vector.present[same].sum(axis=0) > 1).any():
            raise PromQLError(SAME_LABELS)
        for row in same[1:]:
            here = vector.present[row]
            out.values[place, here] = vector.values[row, here]
            out.present[place, here] = True
            if out.oldest is not None and vector.oldest is not None:
                out.oldest[place, here] = vector.oldest[row, here]
            if inputs is not None and vector.inputs is not None:
                inputs[place] |= vector.inputs[row]
    if inputs is None:
        return out
    return Vector(out.labels, out.times, out.values, out.present, out.oldest, tuple(inputs))


def in_turn(parts: Sequence[Vector]) -> Vector:
    """Vectors over steps that follow one another, as one over all of them."""
    rows: dict[Labels, int] = {}
    for part in parts:
        for labels in part.labels:
            rows.setdefault(labels, len(rows))
    times = np.concatenate([part.times for part in parts])
    values, present = np.zeros((len(rows), times.size)), np.zeros((len(rows), times.size), dtype=bool)
    oldest = np.zeros(values.shape, dtype=np.int64)
    inputs: list[frozenset[Labels]] = [frozenset()] * len(rows)
    at = 0
    for part in parts:
        index, until = [rows[labels] for labels in part.labels], at + part.times.size
        values[index, at:until], present[index, at:until] = part.values, part.present
        if part.oldest is not None and part.inputs is not None:
            oldest[index, at:until] = part.oldest
            for row, some in zip(index, part.inputs, strict=True):
                inputs[row] |= some
        at = until
    if any(part.inputs is None for part in parts):
        return Vector(tuple(rows), times, values, present)
    return Vector(tuple(rows), times, values, present, oldest, tuple(inputs))


def older(a: Times | None, b: Times | None) -> Times | None:
    """The older of two ``oldest`` arrays; either may be None (no raw input)."""
    if a is None or b is None:
        return b if a is None else a
    return np.minimum(a, b)
