"""``histogram_quantile`` for classic buckets (Prometheus promql/quantile.go, bucketQuantile)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probes.columns import Floats, Mask, Rows
from probes.labels import NAME, Labels
from probes.promql.context import Context
from probes.promql.settle import merged
from probes.promql.value import Inputs, Vector
from probes.promql.windows import by_count
from probes.records import dataclass

_TOLERANCE = 1e-12
"""Relative difference between neighbouring buckets that Prometheus 3 takes for a rounding error."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """One histogram: its rows sorted by upper bound, and the bounds [B]."""

    labels: Labels
    rows: Rows
    bounds: Floats


def histogram_quantile(ctx: Context, q: Floats, vector: Vector) -> Vector:
    """The ``q`` [K] quantile of each classic histogram in ``vector``."""
    found = ctx.cache.get(("buckets", vector.labels), lambda: collect(vector.labels))
    shape = (len(found), vector.times.size)
    values, present = np.zeros(shape), np.zeros(shape, dtype=bool)
    for numbers in _alike(found):
        rows = np.stack([found[n].rows for n in numbers], axis=1)
        bounds = np.stack([found[n].bounds for n in numbers], axis=1)
        given, held = vector.values[rows], vector.present[rows]
        flat = (rows.shape[0], -1)
        each = np.broadcast_to(bounds[:, :, None], given.shape).reshape(flat)
        wanted = np.broadcast_to(q, given.shape[1:]).reshape(-1)
        out, there = np.zeros(wanted.size), np.zeros(wanted.size, dtype=bool)
        for columns, order in by_count(held.reshape(flat)):
            counts = np.take_along_axis(given.reshape(flat)[:, columns], order, axis=0)
            near = np.take_along_axis(each[:, columns], order, axis=0)
            out[columns] = bucket_quantile(wanted[columns], near, counts, not ctx.closed)
            there[columns] = True
        values[numbers] = out.reshape(given.shape[1:])
        present[numbers] = there.reshape(given.shape[1:])
    oldest, inputs = None, None
    if vector.oldest is not None and vector.inputs is not None:
        oldest, inputs = _provenance(vector, found)
    return merged(Vector(tuple(one.labels for one in found), vector.times, values, present, oldest, inputs)).pruned()


def _alike(found: Sequence[Buckets]) -> list[list[int]]:
    """Numbers of the histograms, those with equally many buckets together."""
    sizes: dict[int, list[int]] = {}
    for number, one in enumerate(found):
        sizes.setdefault(one.rows.size, []).append(number)
    return list(sizes.values())


def _provenance(
    vector: Vector, found: Sequence[Buckets]
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], Inputs]:
    assert vector.oldest is not None
    assert vector.inputs is not None
    latest = np.iinfo(np.int64).max
    times = np.where(vector.present, vector.oldest, latest)
    oldest = np.array([times[one.rows].min(axis=0) for one in found], dtype=np.int64)
    empty: frozenset[Labels] = frozenset()
    inputs = tuple(empty.union(*(vector.inputs[i] for i in one.rows.tolist())) for one in found)
    return oldest.reshape(len(found), vector.times.size), inputs


def collect(labels: Sequence[Labels]) -> list[Buckets]:
    """Group bucket series by everything but ``le`` and the name; a series without a readable ``le`` is skipped."""
    rows: dict[Labels, list[tuple[float, int]]] = {}
    for i, found in enumerate(labels):
        bound = _bound(found.get("le"))
        if bound is not None:
            rows.setdefault(found.without(("le", NAME)), []).append((bound, i))
    made = []
    for key, some in rows.items():
        some.sort()
        made.append(Buckets(key, np.array([i for _, i in some], dtype=np.intp), np.array([b for b, _ in some])))
    return made


def _bound(text: str) -> float | None:
    try:
        return float(text) if "_" not in text and text == text.strip() else None
    except ValueError:
        return None


def bucket_quantile(q: Floats, bounds: Floats, counts: Floats, tolerant: bool) -> Floats:
    """Quantiles [C] of C histograms: ``bounds`` and cumulative ``counts`` are [B, C], bounds ascending.

    NaN without a +Inf bucket, with fewer than two buckets, or without observations; q below 0 is -Inf, above 1
    +Inf. Counts that fall from one bucket to the next are levelled up; with ``tolerant`` (Prometheus 3) so are
    rises of less than 1e-12, relative.
    """
    bounds, counts, last = _coalesced(bounds, counts)
    counts = _monotonic(counts, tolerant)
    size, columns = counts.shape
    which = np.arange(columns)
    total = counts[last, which]
    rank = np.where((q >= 0) & (q <= 1), q, 0.0) * total
    reached: Mask = (counts >= rank[None, :]) & (np.arange(size)[:, None] < last[None, :])
    bucket = np.where(reached.any(axis=0), reached.argmax(axis=0), last)
    below = np.maximum(bucket - 1, 0)
    inner = bucket > 0
    start = np.where(inner, bounds[below, which], 0.0)
    count = counts[bucket, which] - np.where(inner, counts[below, which], 0.0)
    rank = rank - np.where(inner, counts[below, which], 0.0)
    out = start + (bounds[bucket, which] - start) * (rank / count)
    out = np.where((bucket == 0) & (bounds[0] <= 0), bounds[0], out)
    out = np.where(bucket == last, bounds[np.maximum(last - 1, 0), which], out)
    out = np.where(np.isposinf(bounds[last, which]) & (last >= 1) & (total != 0), out, np.nan)
    out = np.where(q < 0, -np.inf, np.where(q > 1, np.inf, out))
    return np.where(np.isnan(q), np.nan, out)


def _coalesced(bounds: Floats, counts: Floats) -> tuple[Floats, Floats, Rows]:
    """Add up buckets with equal bounds; answers bounds, counts and the index of each column's last bucket."""
    last = np.full(counts.shape[1], counts.shape[0] - 1, dtype=np.intp)
    if not (bounds[1:] == bounds[:-1]).any():
        return bounds, counts, last
    new_bounds, new_counts = np.full(bounds.shape, np.inf), np.zeros(counts.shape)
    for column in range(counts.shape[1]):
        at = -1
        for i in range(counts.shape[0]):
            if at < 0 or bounds[i, column] != new_bounds[at, column]:
                at += 1
                new_bounds[at, column] = bounds[i, column]
            new_counts[at, column] += counts[i, column]
        last[column] = at
    return new_bounds, new_counts, last


def _monotonic(counts: Floats, tolerant: bool) -> Floats:
    if not _uneven(counts[:-1], counts[1:], tolerant).any():
        return counts
    out = counts.copy()
    for i in range(1, out.shape[0]):
        before, here = out[i - 1], out[i]
        level = here < before
        if tolerant:
            scale = np.minimum(np.abs(before) + np.abs(here), np.finfo(np.float64).max)
            near = np.abs(before - here) < _TOLERANCE * scale
            level = level | near
        out[i] = np.where(level, before, here)
    return out


def _uneven(before: Floats, here: Floats, tolerant: bool) -> Mask:
    """Where a count is not what levelling up from bucket to bucket would make of it."""
    uneven: Mask = here < before
    if tolerant:
        scale = np.minimum(np.abs(before) + np.abs(here), np.finfo(np.float64).max)
        uneven |= (np.abs(before - here) < _TOLERANCE * scale) & (before != here)
    return uneven
