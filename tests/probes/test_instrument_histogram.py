"""Buckets as Prometheus has them, exemplars, and what one process reports to another."""

from __future__ import annotations

import math
import random
import time
from bisect import bisect_left

import numpy as np
import pytest

from probes.instrument import Histogram, Operation

BOUNDS = (0.1, 0.5, 1.0, 5.0)


@pytest.mark.parametrize(
    ("value", "bucket"), [(-1, 0), (0.1, 0), (0.10001, 1), (1.0, 2), (5.0, 3), (5.1, 4), (math.inf, 4)]
)
def test_a_bound_belongs_to_its_own_bucket(value: float, bucket: int) -> None:
    histogram = Histogram(BOUNDS)
    histogram.observe(value)
    assert histogram.counts == [int(i == bucket) for i in range(5)]
    assert histogram.count == 1


def test_what_is_no_value_is_left_out() -> None:
    histogram = Histogram(BOUNDS)
    histogram.observe(math.nan)
    histogram.observe_many([math.nan, 0.2])
    assert (histogram.count, histogram.total) == (1, 0.2)


@pytest.mark.parametrize("bounds", [(), (1, 1), (2, 1), (1, math.inf)])
def test_bounds_that_do_not_rise_are_refused(bounds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="bound"):
        Histogram(bounds)


def test_many_at_once_count_as_one_by_one() -> None:
    values = np.random.default_rng(3).exponential(1.0, 2_000)
    values[::50] = np.array(BOUNDS * 10)
    slow, quick = Histogram(BOUNDS), Histogram(BOUNDS)
    for value in values.tolist():
        slow.observe(value)
    quick.observe_many(values)
    assert quick.counts == slow.counts
    assert all(isinstance(count, int) for count in quick.counts)
    assert quick.total == pytest.approx(slow.total)


def test_times_weighs_a_value() -> None:
    histogram = Histogram(BOUNDS)
    histogram.observe(0.3, times=7)
    assert histogram.counts == [0, 7, 0, 0, 0]
    assert histogram.total == pytest.approx(2.1)


def test_a_bucket_keeps_its_last_exemplar() -> None:
    histogram = Histogram(BOUNDS)
    before = time.time()
    histogram.observe(0.2, "a" * 32)
    histogram.observe(0.3, "b" * 32)
    histogram.observe(0.4)
    histogram.observe_many([0.01, 3.0, 2.0], "c" * 32)
    kept = histogram.snapshot().exemplars
    assert [k and (k.trace_id, k.value) for k in kept] == [None, ("b" * 32, 0.3), None, ("c" * 32, 3.0), None]
    assert all(k is None or before <= k.at <= time.time() for k in kept)


def test_take_and_merge_lose_nothing() -> None:
    rng = random.Random(5)
    here, there, oracle = Histogram(BOUNDS), Histogram(BOUNDS), [0] * 5
    for _ in range(20):
        for _ in range(rng.randrange(9)):
            value = rng.expovariate(1)
            here.observe(value)
            oracle[bisect_left(BOUNDS, value)] += 1
        there.merge(*here.take())
    assert there.counts == oracle
    assert here.count == 0
    with pytest.raises(ValueError, match="buckets"):
        there.merge([1, 2], 3.0)


def test_a_snapshot_does_not_move() -> None:
    histogram = Histogram(BOUNDS)
    histogram.observe(0.2)
    state = histogram.snapshot()
    histogram.observe(0.2)
    assert sum(state.counts) == 1


def test_an_operation_counts_its_end_once() -> None:
    operation = Operation("put", BOUNDS)
    operation.inflight += 1
    operation.done(0.2, "refused", None)
    assert (operation.inflight, operation.results) == (0, {"ok": 0, "refused": 1, "error": 0})
    with pytest.raises(KeyError):
        operation.done(0.2, "lost", None)
