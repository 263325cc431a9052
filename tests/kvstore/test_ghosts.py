"""What is remembered of removed keys, and how it errs."""

from __future__ import annotations

import math

import numpy as np

from kvstore.ghosts import Ghosts
from kvstore.hotness import Hotness
from kvstore.messages import Miss


def keys(first: int, count: int) -> np.ndarray:
    return np.random.default_rng(first).integers(0, 2**64, (count, 4), np.uint64)


def test_the_last_reason_is_told() -> None:
    ghosts = Ghosts(1 << 16)
    gone = keys(1, 100)
    assert (ghosts.why(gone) == Miss.ABSENT).all()
    ghosts.add(gone[:50], Miss.EVICTED)
    ghosts.add(gone[25:75], Miss.EXPIRED)
    ghosts.add(gone[:0], Miss.REMOVED)
    assert ghosts.why(gone).tolist() == [Miss.EVICTED] * 25 + [Miss.EXPIRED] * 50 + [Miss.ABSENT] * 25


def test_a_million_keys_that_never_were_are_absent() -> None:
    ghosts = Ghosts(1 << 12)
    ghosts.add(keys(2, 1 << 14), Miss.EVICTED)
    assert (ghosts.why(keys(3, 1_000_000)) == Miss.ABSENT).all()


def test_forgetting_is_as_rare_as_stated() -> None:
    ghosts = Ghosts.for_pool(1024)
    first = keys(4, 10_000)
    ghosts = Ghosts(8 * len(first))
    ghosts.add(first, Miss.REMOVED)
    ghosts.add(keys(5, ghosts.cells // 8), Miss.EVICTED)
    forgotten = np.count_nonzero(ghosts.why(first) != Miss.REMOVED) / len(first)
    # Later removals, and those among the first themselves that share a cell.
    stated = 1 - math.exp(-(1 / 8 + len(first) / ghosts.cells / 2))
    assert abs(forgotten - stated) < 0.02


def test_memory_is_bounded() -> None:
    ghosts = Ghosts.for_pool(1000)
    assert ghosts.cells == 8192
    for round_ in range(20):
        ghosts.add(keys(round_, 5_000), Miss.EVICTED)
    assert ghosts._table.nbytes == 65_536


def test_the_commonest_chain_is_found_among_more_than_can_be_counted() -> None:
    hot = Hotness(interval_ms=1_000, counters=16)
    others = keys(6, 2_000)
    for number, key in enumerate(others):
        hot.saw(key[None], 0)
        if number % 2 == 0:
            hot.saw(np.full((1, 4), 7, np.uint64), 0)
    assert hot.share(999) is None
    share = hot.share(1_000)
    assert share is not None
    assert 1 / 3 - 1 / 17 <= share <= 1 / 3
