"""``absent`` and ``absent_over_time``: one element, labelled by the selector's equalities, when nothing is there."""

from __future__ import annotations

import numpy as np

from probes.columns import Mask, Times
from probes.labels import NAME, Labels
from probes.promql.ast import VectorSelector
from probes.promql.context import Context
from probes.promql.value import Vector


def absent_labels(selector: VectorSelector | None) -> Labels:
    """Labels that the selector pins with one ``=``; a label matched in any other way, or twice, is left out."""
    if selector is None:
        return Labels.of()
    pinned: dict[str, str] = {}
    seen: set[str] = set()
    for matcher in selector.matchers:
        if matcher.name == NAME:
            continue
        if matcher.op == "=" and matcher.name not in seen:
            pinned[matcher.name] = matcher.value
            seen.add(matcher.name)
        else:
            pinned.pop(matcher.name, None)
    return Labels.of(pinned)


def absent_vector(ctx: Context, labels: Labels, times: Times, absent: Mask) -> Vector:
    """1 at the steps where ``absent`` [K]. It rests on no sample: its ``oldest`` is the step itself."""
    if not absent.any():
        return Vector.empty(times, ctx.track)
    oldest = times[None, :].copy() if ctx.track else None
    inputs = (frozenset[Labels](),) if ctx.track else None
    return Vector((labels,), times, np.ones((1, times.size)), absent[None, :], oldest, inputs)
