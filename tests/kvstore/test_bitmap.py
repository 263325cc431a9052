"""The packed bitmap: the same answers as a set of numbers, runs first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.bitmap import Bitmap, NaiveBitmap, SlotBitmap, runs_of

STEPS = st.lists(st.tuples(st.sampled_from(["take", "run", "give"]), st.integers(1, 70)), max_size=40)


@settings(max_examples=150, deadline=None)
@given(count=st.integers(1, 300), steps=STEPS, naive=st.booleans())
def test_it_agrees_with_a_set(count: int, steps: list[tuple[str, int]], naive: bool) -> None:
    bitmap: SlotBitmap = NaiveBitmap(count, drain_s=0.0) if naive else Bitmap(count)
    free = set(range(count))
    taken: list[np.ndarray] = []
    for what, n in steps:
        if what == "give" and taken:
            slots = taken.pop(n % len(taken))
            bitmap.release(slots)
            free |= set(slots.tolist())
            continue
        slots = bitmap.allocate(n, one_run=what == "run")
        _, lengths = runs_of(np.isin(np.arange(count), list(free)))
        longest = int(lengths.max(initial=0))
        if slots is None:
            assert len(free) < n if what != "run" else longest < n
            continue
        assert len(slots) == n
        assert set(slots.tolist()) <= free
        if longest >= n:
            assert slots[-1] - slots[0] == n - 1, "there was a run, and it was not taken"
        free -= set(slots.tolist())
        taken.append(slots)
    assert bitmap.free == len(free)
    assert set(np.flatnonzero(bitmap.is_free()).tolist()) == free


def test_scattered_slots_come_from_the_longest_runs() -> None:
    bitmap = Bitmap(40)
    everything = bitmap.allocate(40)
    assert everything is not None
    bitmap.release(np.asarray([1, 5, 6, 7, 20, 21, 30]))
    assert bitmap.allocate(6, one_run=True) is None
    slots = bitmap.allocate(5)
    assert slots is not None
    assert slots.tolist() == [5, 6, 7, 20, 21]


def test_a_run_across_words_and_chunks_is_found() -> None:
    bitmap = Bitmap(64 * 2048)
    everything = bitmap.allocate(64 * 2048)
    assert everything is not None
    start = 64 * 512 - 40
    bitmap.release(np.arange(start, start + 90))
    slots = bitmap.allocate(90, one_run=True)
    assert slots is not None
    assert slots[0] == start


@pytest.mark.parametrize("n", [0, -1, 101])
def test_what_cannot_be_is_refused(n: int) -> None:
    assert Bitmap(100).allocate(n) is None


def test_only_the_naive_one_reads_from_the_host() -> None:
    naive, packed = NaiveBitmap(64, drain_s=0.0), Bitmap(64)
    naive.allocate(8)
    packed.allocate(8)
    assert naive.device_reads["bitmap.allocate"] == 9
    assert naive.sync_seconds["bitmap.allocate"] > 0
    assert not packed.device_reads
