"""Vector matching for arithmetic and comparisons (Prometheus promql/engine.go, VectorBinop)."""

from __future__ import annotations

import numpy as np

from probes.columns import Floats, Mask, Rows
from probes.labels import NAME, Labels
from probes.promql.ast import Binary, VectorMatching
from probes.promql.context import Context
from probes.promql.errors import PromQLError
from probes.promql.operators import combine, drops_name
from probes.promql.settle import merged
from probes.promql.value import Inputs, Vector
from probes.records import dataclass


@dataclass(frozen=True, slots=True)
class Join:
    """Pairs of rows with equal signature: ``many[p]`` and ``one[p]`` make a row labelled ``labels[p]``.

    ``group[p]`` numbers what must be unique at a step; ``shared`` lists sets of rows of the one side with equal
    signatures; ``plain`` is True when nothing can clash.
    """

    many: Rows
    one: Rows
    labels: tuple[Labels, ...]
    group: Rows
    shared: tuple[tuple[int, ...], ...]
    plain: bool


def match_vectors(ctx: Context, node: Binary, left: Vector, right: Vector, matching: VectorMatching) -> Vector:
    """Evaluate ``left op right``; PromQLError for the matches that Prometheus refuses."""
    swapped = matching.group == "right"
    many, one = (right, left) if swapped else (left, right)
    if not left.labels or not right.labels:
        return Vector.empty(left.times, ctx.track)
    drops = drops_name(node.op, node.return_bool, ctx.closed)
    key = ("join", many.labels, one.labels, matching, drops)
    join = ctx.cache.get(key, lambda: _join(many.labels, one.labels, matching, drops))
    _refuse_many_to_many(join, many, one, matching, swapped)
    a, b = many.values[join.many], one.values[join.one]
    values, holds = combine(node.op, *((b, a) if swapped else (a, b)), node.return_bool)
    present = many.present[join.many] & one.present[join.one]
    if holds is not None:
        present = present & holds
    if not join.plain:
        _refuse_clash(join, present, matching)
    return _result(join, many, one, values, present)


def _result(join: Join, many: Vector, one: Vector, values: Floats, present: Mask) -> Vector:
    oldest, inputs = None, _inputs(join, many, one)
    if many.oldest is not None and one.oldest is not None:
        oldest = np.minimum(many.oldest[join.many], one.oldest[join.one])
    made = Vector(join.labels, many.times, values, present, oldest, inputs).pruned()
    return made if join.plain else merged(made)


def _inputs(join: Join, many: Vector, one: Vector) -> Inputs | None:
    if many.inputs is None or one.inputs is None:
        return None
    pairs = zip(join.many.tolist(), join.one.tolist(), strict=True)
    return tuple(many.inputs[a] | one.inputs[b] for a, b in pairs)


def _join(many: tuple[Labels, ...], one: tuple[Labels, ...], matching: VectorMatching, drops: bool) -> Join:
    def signature(labels: Labels) -> Labels:
        return labels.only(matching.labels) if matching.on else labels.without((*matching.labels, NAME))

    theirs: dict[Labels, list[int]] = {}
    for i, found in enumerate(one):
        theirs.setdefault(signature(found), []).append(i)
    pairs: list[tuple[int, int]] = []
    labels: list[Labels] = []
    groups: dict[tuple[Labels, Labels | None], int] = {}
    group: list[int] = []
    for i, found in enumerate(many):
        sign = signature(found)
        for j in theirs.get(sign, ()):
            made = _labels(found, one[j], matching, drops)
            pairs.append((i, j))
            labels.append(made)
            group.append(groups.setdefault((sign, made if matching.group else None), len(groups)))
    index = np.array(pairs, dtype=np.intp).reshape(len(pairs), 2)
    shared = tuple(tuple(same) for same in theirs.values() if len(same) > 1)
    plain = not shared and len(groups) == len(group) and len(set(labels)) == len(labels)
    return Join(index[:, 0], index[:, 1], tuple(labels), np.array(group, dtype=np.intp), shared, plain)


def _labels(many: Labels, one: Labels, matching: VectorMatching, drops: bool) -> Labels:
    made = many.unnamed() if drops else many
    if not matching.group:
        made = made.only(matching.labels) if matching.on else made.without(matching.labels)
    if matching.include:
        made = made.replace(**{name: one.get(name) for name in matching.include})
    return made


def _refuse_many_to_many(join: Join, many: Vector, one: Vector, matching: VectorMatching, swapped: bool) -> None:
    busy = many.present.any(axis=0)
    for same in join.shared:
        rows = list(same)
        clash = (one.present[rows].sum(axis=0) > 1) & busy
        if not clash.any():
            continue
        step = int(np.flatnonzero(clash)[0])
        first, second = [one.labels[i] for i in rows if one.present[i, step]][:2]
        side = "left" if swapped else "right"
        on = first.only(matching.labels) if matching.on else first.without((*matching.labels, NAME))
        raise PromQLError(
            f"found duplicate series for the match group {_braced(on)} on the {side} hand-side of the operation: "
            f"[{_braced(second)}, {_braced(first)}];many-to-many matching not allowed: "
            "matching labels must be unique on one side"
        )


def _refuse_clash(join: Join, present: Mask, matching: VectorMatching) -> None:
    if not join.group.size:
        return
    counts = np.zeros((int(join.group.max()) + 1, present.shape[1]), dtype=np.intp)
    np.add.at(counts, join.group, present)
    if (counts > 1).any():
        if matching.group:
            raise PromQLError("multiple matches for labels: grouping labels must ensure unique matches")
        raise PromQLError("multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)")


def _braced(labels: Labels) -> str:
    return "{" + ", ".join(f'{k}="{v}"' for k, v in labels.pairs) + "}"
