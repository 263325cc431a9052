"""The oracles, against counts taken from the published trace and against a slow restatement."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.replay.oracle import infinite, prefix_length, strict_lru
from kvstore.replay.trace import Request, excerpt, read_trace


def request(*windows: int) -> Request:
    return Request(0, 512 * len(windows), 0, np.asarray(windows, np.int64))


def test_the_excerpt_without_a_limit() -> None:
    trace = read_trace(excerpt())
    seen: set[int] = set()
    hits = 0
    for windows in (one.windows.tolist() for one in trace):
        hits += len(seen.intersection(windows))
        seen.update(windows)
    outcome = infinite(trace)
    assert (outcome.blocks, outcome.block_hits, outcome.prefix_hits, outcome.evictions) == (16_495, hits, hits, 0)
    assert hits == 2_783


def test_the_oldest_goes_and_a_prefix_ends_at_the_first_miss() -> None:
    trace = [request(1, 2, 3), request(4), request(1, 2, 3)]
    outcome = strict_lru(trace, [3])
    assert (outcome.block_hits, outcome.prefix_hits, outcome.evictions) == (2, 0, 4)
    assert strict_lru(trace, [4]).prefix_hits == 3
    assert prefix_length([True, True, False, True]) == 2
    assert prefix_length([]) == 0


def test_each_shard_has_its_own_room() -> None:
    trace = [request(1, 2, 3, 4), request(1, 2, 3, 4)]
    outcome = strict_lru(trace, [1, 3], lambda one: (one.windows != 1).astype(np.int64))
    assert (outcome.block_hits, outcome.evictions) == (4, 0)
    tight = strict_lru(trace, [2, 2], lambda one: (one.windows != 1).astype(np.int64))
    assert (tight.block_hits, tight.prefix_hits) == (3, 1)  # window 2 gave way to 4, though shard 0 had room


def test_no_references_no_ratio() -> None:
    assert infinite([request()]).block_hit_ratio is None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=6, unique=True), max_size=20), st.integers(1, 8))
def test_equals_a_list_that_is_searched(rows: list[list[int]], capacity: int) -> None:
    recent: list[int] = []
    hits = prefix = 0
    for row in rows:
        there = [window in recent for window in row]
        hits += sum(there)
        prefix += prefix_length(there)
        for window in row:
            recent = [*(other for other in recent if other != window), window][-capacity:]
    outcome = strict_lru([request(*row) for row in rows], [capacity])
    assert (outcome.block_hits, outcome.prefix_hits) == (hits, prefix)
