"""The pool: states, claims and eviction, one by one and at random."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.arena import Arena
from kvstore.bitmap import NaiveBitmap
from kvstore.checks import Verdict, judge
from kvstore.errors import NoRun, PoolExhausted
from kvstore.header import sums
from kvstore.index import Index
from kvstore.layout import Layout
from kvstore.pool import LEASE_GRACE_MS, Pool, State

LAYOUT = Layout("test", head_dim=8, block_tokens=4, window_tokens=32, dtype="uint8")


def make(blocks: int, *, naive: bool = False) -> Pool:
    arena = Arena.create("kv-test", blocks, LAYOUT.slot_bytes, LAYOUT.block_bytes, pool=True)
    return Pool(arena, Index.create(blocks), bitmap=NaiveBitmap(blocks, drain_s=0.0) if naive else None)


def keys_of(*numbers: int) -> np.ndarray:
    return np.asarray([[number, 7, 7, 7] for number in numbers], np.uint64)


def put(pool: Pool, *numbers: int, now: int = 0, one_run: bool = False) -> np.ndarray:
    slots = pool.reserve(len(numbers), one_run=one_run, now_ms=now)
    for slot, number in zip(slots, numbers, strict=True):
        pool.arena.data[slot] = number % 251
    n = len(slots)
    clock, valid = np.full(n, 1, np.uint64), np.full(n, 4, np.int64)
    pool.publish(
        slots, keys_of(*numbers), clock, valid, np.zeros((n, 24), np.uint8), sums(pool.arena.data[slots]), now_ms=now
    )
    return slots


def states(pool: Pool, now: int = 0) -> dict[str, int]:
    found = np.bincount(pool.states(now), minlength=len(State))
    return {state.name.lower(): int(found[state]) for state in State if found[state]}


def test_a_published_block_is_found_and_passes_a_readers_checks() -> None:
    pool = make(8)
    slots = put(pool, 1, 2, 3)
    assert pool.find(keys_of(1, 2, 3, 4)).tolist() == [*slots.tolist(), -1]
    copy = pool.arena.slots[slots].copy()
    verdicts = judge(copy, keys_of(1, 2, 3), pool.generations(slots), LAYOUT.block_bytes)
    assert (verdicts == Verdict.OK).all()


@pytest.mark.parametrize("at", [0, 33, 41, 49, 60, 81, 90, 128, 150])
def test_any_damaged_byte_is_seen(at: int) -> None:
    pool = make(8)
    slots = put(pool, 1)
    pool.arena.slots[slots[0], at] ^= np.uint8(4)
    verdicts = judge(pool.arena.slots[slots].copy(), keys_of(1), pool.generations(slots), LAYOUT.block_bytes)
    assert verdicts[0] != Verdict.OK


def test_a_slot_being_written_has_an_odd_generation() -> None:
    pool = make(2)
    old = put(pool, 1)
    before = pool.generations(old)
    pool.remove(old)
    pool.sweep(1)
    new = pool.reserve(2, now_ms=1)
    assert old[0] in new
    assert (pool.arena.headers["generation"][new] % 2 == 1).all()
    assert (pool.generations(old) > before).all()
    pool.abandon(new)
    assert states(pool) == {"free": 2}
    again = put(pool, 5, 6, now=2)
    assert (pool.generations(again) % 2 == 0).all()


def test_the_oldest_goes_first_and_a_use_keeps_it() -> None:
    pool = make(16)
    for window in range(4):
        put(pool, *range(window * 4, window * 4 + 4), now=window)
    pool.touch(pool.find(keys_of(0, 1, 2, 3)), 10)
    put(pool, 100, 101, 102, 103, now=11)
    assert (pool.find(keys_of(0, 1, 2, 3)) >= 0).all()
    assert (pool.find(keys_of(4, 5, 6, 7)) == -1).all()
    evicted = pool.drain_evicted()
    assert [gone.reason for gone in evicted] == ["capacity"]
    assert evicted[0].idle_ms.tolist() == [10] * 4
    assert pool.drain_reuse_gaps_ms().tolist() == [10] * 4


def test_nothing_claimed_is_evicted() -> None:
    pool = make(4)
    leased, held, pinned, cached = (put(pool, number) for number in (1, 2, 3, 4))
    pool.lease(leased, 1_000)
    pool.hold(held)
    pool.pin(pinned)
    assert states(pool) == {"leased": 2, "used": 1, "cached": 1}
    put(pool, 5, now=1)
    assert pool.find(keys_of(4))[0] == -1
    pool.hold(pool.find(keys_of(5)))
    with pytest.raises(PoolExhausted, match="1 blocks asked, 0 of 4 free"):
        pool.reserve(1, now_ms=2)
    pool.unpin(pinned)
    assert put(pool, 6, now=3)[0] == pinned[0]
    pool.hold(pool.find(keys_of(6)))
    with pytest.raises(PoolExhausted):
        pool.reserve(1, now_ms=1_000 + LEASE_GRACE_MS - 1)
    assert put(pool, 7, now=1_000 + LEASE_GRACE_MS)[0] == leased[0]
    assert pool.find(keys_of(2))[0] == held[0]
    del cached


@pytest.mark.parametrize("one_run", [True, False])
def test_a_refusal_takes_nothing(one_run: bool) -> None:
    """What is cached must not go for a put that cannot be had anyway."""
    pool = make(12)
    for number in range(12):
        slots = put(pool, number, now=number)
        if number % 2:
            pool.hold(slots)
    with pytest.raises(PoolExhausted, match="7 blocks asked, 0 of 12 free"):
        pool.reserve(7, one_run=one_run, now_ms=20)
    with pytest.raises(NoRun):
        pool.reserve(2, one_run=True, now_ms=20)
    assert (pool.find(keys_of(*range(12))) >= 0).all()
    assert pool.drain_evicted() == []
    assert len(pool.reserve(6, now_ms=21)) == 6


def test_a_removed_block_is_gone_at_once_and_rests_while_leased() -> None:
    pool = make(2)
    slots = put(pool, 1)
    pool.lease(slots, 100)
    pool.remove(slots)
    assert pool.find(keys_of(1))[0] == -1
    assert pool.sweep(100 + LEASE_GRACE_MS - 1) == 0
    assert states(pool, 50) == {"leased": 1, "free": 1}
    assert pool.sweep(100 + LEASE_GRACE_MS) == 1
    assert states(pool, 200) == {"free": 2}


def test_a_new_version_takes_over_key_and_holds() -> None:
    pool = make(4)
    old = put(pool, 1)
    pool.hold(old)
    new = pool.reserve(1, now_ms=1)
    pool.arena.data[new[0]] = 9
    pool.replace(
        old,
        new,
        keys_of(1),
        np.asarray([2], np.uint64),
        np.asarray([3]),
        np.zeros((1, 24), np.uint8),
        sums(pool.arena.data[new]),
        now_ms=1,
    )
    assert pool.find(keys_of(1)).tolist() == new.tolist()
    assert pool.sweep(1) == 1
    assert states(pool, 1) == {"used": 1, "free": 3}
    assert pool.unhold(new).tolist() == new.tolist()
    assert states(pool, 1) == {"cached": 1, "free": 3}


def test_one_run_or_a_refusal() -> None:
    pool = make(32)
    slots = np.concatenate([put(pool, number) for number in range(32)])
    pool.hold(slots[::4])
    pool.remove(slots[1::4])
    pool.sweep(1)
    with pytest.raises(NoRun, match="8 blocks are free, the longest run that is free or evictable has 3"):
        pool.reserve(4, one_run=True, now_ms=1)
    run = pool.reserve(3, one_run=True, now_ms=1)
    assert np.diff(run).tolist() == [1, 1]
    assert {gone.reason for gone in pool.drain_evicted()} == {"run"}
    scattered = pool.reserve(5, now_ms=1)
    assert len(scattered) == 5


def test_the_naive_bitmap_serves_the_same_pool() -> None:
    pool = make(16, naive=True)
    put(pool, *range(8))
    assert states(pool) == {"cached": 8, "free": 8}
    assert pool.bitmap.device_reads["bitmap.allocate"] == 9


class Books:
    """What a sequence of calls promised, kept beside the pool."""

    def __init__(self) -> None:
        self.pool = make(24)
        self.now = 1_000
        self.leases: dict[int, tuple[int, int, int]] = {}
        self.holds: dict[int, int] = {}
        self.pins: dict[int, int] = {}

    def put(self, first: int, n: int, *, one_run: bool = False) -> None:
        numbers = range(first, first + n)
        if (self.pool.find(keys_of(*numbers)) >= 0).any():
            return
        try:
            taken = put(self.pool, *numbers, now=self.now, one_run=one_run)
        except (PoolExhausted, NoRun):
            return
        assert not one_run or taken[-1] - taken[0] == n - 1

    def put_run(self, first: int, n: int) -> None:
        self.put(first, n, one_run=True)

    def lease(self, first: int, n: int) -> None:
        slots = self.slots(first)
        self.pool.lease(slots, self.now + 20 * n)
        for slot, generation in zip(slots.tolist(), self.pool.generations(slots).tolist(), strict=True):
            self.leases[first] = slot, generation, self.now + 20 * n

    def claim(self, first: int, claims: dict[int, int], step: int) -> np.ndarray:
        slots = self.slots(first)
        if not len(slots) or claims.get(first, 0) + step < 0:
            return slots[:0]
        claims[first] = claims.get(first, 0) + step
        return slots

    def hold(self, first: int, _: int) -> None:
        self.pool.hold(self.claim(first, self.holds, 1))

    def unhold(self, first: int, _: int) -> None:
        self.pool.unhold(self.claim(first, self.holds, -1))

    def pin(self, first: int, _: int) -> None:
        self.pool.pin(self.claim(first, self.pins, 1))

    def unpin(self, first: int, _: int) -> None:
        self.pool.unpin(self.claim(first, self.pins, -1))

    def remove(self, first: int, _: int) -> None:
        if not self.pins.get(first):
            self.pool.remove(self.slots(first))
            self.holds.pop(first, None)

    def touch(self, first: int, _: int) -> None:
        self.pool.touch(self.slots(first), self.now)

    def wait(self, _: int, n: int) -> None:
        self.now += 15 * n
        self.pool.sweep(self.now)

    def slots(self, first: int) -> np.ndarray:
        slots = self.pool.find(keys_of(first))
        return slots[slots >= 0]

    def check(self) -> None:
        for slot, generation, until in self.leases.values():
            if until > self.now:
                assert self.pool.arena.headers["generation"][slot] == generation, "a leased slot was recycled"
        for first, count in [*self.holds.items(), *self.pins.items()]:
            assert count == 0 or len(self.slots(first)), "a claimed block went"
        figures = states(self.pool, self.now)
        assert sum(figures.values()) == 24
        assert figures.get("free", 0) == self.pool.free
        assert figures.get("reserved", 0) == 0
        assert int((self.pool.fill() >= 0).sum()) == len(self.pool.index)


ACTIONS = ["put", "put_run", "lease", "hold", "unhold", "pin", "unpin", "remove", "touch", "wait"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 11), st.integers(1, 6)), max_size=60))
def test_any_sequence_keeps_the_promises(actions: list[tuple[str, int, int]]) -> None:
    books = Books()
    for what, number, n in actions:
        getattr(books, what)(number * 10, n)
        books.check()
