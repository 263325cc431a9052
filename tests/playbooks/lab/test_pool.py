"""The block pool never loses a block, never hands one out twice, and evicts the least recently freed first."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playbooks.lab.pool import NO_KEY, BlockPool, PoolIntegrityError


def test_usage_counts_references_and_not_cached_blocks() -> None:
    pool = BlockPool(11)
    first, second = pool.allocate(2, 0.0)
    assert pool.usage == pytest.approx(0.2)
    pool.publish(first, 7)
    pool.release([first, second])
    assert pool.usage == 0.0
    assert pool.cached == {7: first}


def test_the_head_of_a_sequence_outlives_its_tail() -> None:
    pool = BlockPool(5)
    blocks = pool.allocate(4, 0.0)
    for key, block in enumerate(blocks, 1):
        pool.publish(block, key)
    pool.release(blocks)
    pool.allocate(3, 1.0)
    assert set(pool.cached) == {1}


def test_a_touched_block_is_not_evicted() -> None:
    pool = BlockPool(3)
    (block,) = pool.allocate(1, 0.0)
    pool.publish(block, 1)
    pool.release([block])
    pool.touch(block, 1.0)
    pool.allocate(1, 2.0)
    assert pool.cached == {1: block}
    with pytest.raises(ValueError, match="1 blocks wanted, 0 free"):
        pool.allocate(1, 3.0)


def test_residency_is_lifetime_idle_time_and_gaps() -> None:
    seen: list[tuple[float, float, list[float]]] = []
    pool = BlockPool(2, sample_every=1, on_evict=lambda life, idle, gaps: seen.append((life, idle, gaps)))
    (block,) = pool.allocate(1, 10.0)
    pool.publish(block, 1)
    pool.release([block])
    for time in (14.0, 15.0):
        pool.touch(block, time)
        pool.release([block])
    pool.allocate(1, 35.0)
    assert seen == [(25.0, 20.0, [4.0, 1.0])]


def test_integrity_names_the_numbers() -> None:
    pool = BlockPool(4)
    held = pool.allocate(2, 0.0)
    pool.check_integrity([held])
    with pytest.raises(PoolIntegrityError, match="2 references, 0 held or leaked"):
        pool.check_integrity([])
    pool.release(held)
    with pytest.raises(PoolIntegrityError, match="released with 0 references"):
        pool.release(held)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("apdt"), st.integers(0, 30)), max_size=80))
def test_any_order_of_calls_keeps_the_books(calls: list[tuple[str, int]]) -> None:
    pool = BlockPool(12)
    held: list[list[int]] = []
    for now, (call, value) in enumerate(calls):
        if call == "a" and 0 < value <= pool.free_blocks:
            held.append(pool.allocate(value, now))
        elif call == "p" and held:
            block = held[-1][value % len(held[-1])]
            if pool.keys[block] == NO_KEY:
                pool.publish(block, 100 + now)
        elif call == "d" and held:
            pool.release(held.pop(value % len(held)))
        elif call == "t" and pool.cached:
            block = sorted(pool.cached.values())[value % len(pool.cached)]
            pool.touch(block, now)
            held.append([block])
        _books(pool, held)


def _books(pool: BlockPool, held: list[list[int]]) -> None:
    pool.check_integrity(held)
    owned = {block for blocks in held for block in blocks}
    assert owned.isdisjoint(pool.free)
    assert len(owned) + pool.free_blocks == pool.capacity
    assert 0 not in owned
