"""The mapped transport copies what it is told to, as few runs as there are, and nothing outside the pool."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kvstore.arena import Arena
from kvstore.checks import Verdict
from kvstore.errors import BadRequest, ChecksumMismatch
from kvstore.index import Index
from kvstore.pool import Pool
from kvstore.reader import Part, read
from kvstore.transport.mapped import MappedPeer
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys

SLOTS = 64


@pytest.fixture
def pool() -> Pool:
    arena = Arena.create("t", SLOTS, LAYOUT.slot_bytes, LAYOUT.block_bytes, pool=True)
    return Pool(arena, Index.create(SLOTS))


@pytest.fixture
def peer(pool: Pool) -> Iterator[MappedPeer]:
    ours, theirs = socket.socketpair()
    made = MappedPeer({"shard": 0}, pool.arena, pool.index, os.pidfd_open(os.getpid()), ours)
    yield made
    theirs.close()
    made.close()


def fill(pool: Pool, n: int, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Keys, slots and generations of `n` published blocks."""
    from kvstore.header import sums

    keys = some_keys(n, seed)
    slots = pool.reserve(n, now_ms=0)
    pool.arena.data[slots] = blocks_for(keys)
    chains = keys.view(np.uint8).reshape(n, 32)[:, :24]
    generations = pool.publish(
        slots, keys, np.uint64(1), np.full(n, 16), chains, sums(pool.arena.data[slots]), now_ms=0
    )
    return keys, slots, generations


@pytest.mark.parametrize(
    ("slots", "rows", "descriptors"),
    [
        ([], None, 0),
        ([5], None, 1),
        ([63], [2], 1),
        ([0, 1, 2, 3, 9, 10], None, 2),
        ([7, 5, 3, 1], None, 4),
        ([4, 5, 6, 7], [0, 1, 3, 4], 2),
        ([10, 11, 12], [5, 3, 1], 3),
        ([3, 3, 3], None, 3),
        (list(range(SLOTS)), None, 1),
    ],
)
def test_slots_arrive_where_they_should(
    pool: Pool, peer: MappedPeer, slots: list[int], rows: list[int] | None, descriptors: int
) -> None:
    pool.arena.slots[:] = np.random.default_rng(1).integers(0, 256, pool.arena.slots.shape, np.uint8)
    out = np.zeros((max(8, len(slots)), LAYOUT.slot_bytes), np.uint8)
    at = None if rows is None else np.asarray(rows)
    assert peer.read(np.asarray(slots, np.int64), at, out) == descriptors
    to = list(range(len(slots))) if rows is None else rows
    assert (out[to] == pool.arena.slots[slots]).all()
    untouched = sorted(set(range(len(out))) - set(to))
    assert not out[untouched].any()


@pytest.mark.parametrize("slots", [[-1], [SLOTS], [0, SLOTS], [3, -2, 1]])
def test_a_slot_outside_the_pool_is_refused(peer: MappedPeer, slots: list[int]) -> None:
    with pytest.raises(BadRequest, match="pool"):
        peer.read(np.asarray(slots), None, np.zeros((4, LAYOUT.slot_bytes), np.uint8))


def test_the_end_of_the_process_and_of_the_connection_are_seen(pool: Pool) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ours, theirs = socket.socketpair()
    peer = MappedPeer({}, pool.arena, pool.index, os.pidfd_open(process.pid), ours)
    assert peer.alive()
    assert peer.connected()
    process.kill()
    process.communicate()
    assert not peer.alive()
    assert not peer.connected()
    ours2, theirs2 = socket.socketpair()
    other = MappedPeer({}, pool.arena, pool.index, os.pidfd_open(os.getpid()), ours2)
    assert other.connected()
    theirs2.close()
    assert other.alive()
    assert not other.connected()
    other.close()
    other.close()
    assert not other.alive()
    theirs.close()


@pytest.mark.parametrize("verify", [True, False])
def test_what_was_recycled_is_told_from_what_is_there(pool: Pool, peer: MappedPeer, verify: bool) -> None:
    keys, slots, generations = fill(pool, 6)
    out = np.zeros((6, LAYOUT.slot_bytes), np.uint8)
    stale = generations.copy()
    stale[1] -= np.uint64(2)
    wrong = keys.copy()
    wrong[2, 0] += np.uint64(1)
    verdicts = read([Part(peer, None, slots)], out, wrong, stale, LAYOUT.block_bytes, verify=verify)
    assert verdicts.tolist() == [0, Verdict.RECYCLED, Verdict.RECYCLED, 0, 0, 0]
    assert (out[3:, 128 : 128 + LAYOUT.block_bytes] == blocks_for(keys)[3:]).all()


def test_a_slot_that_is_written_during_the_copy_is_not_taken(pool: Pool, peer: MappedPeer) -> None:
    """Without sums the generation is looked at before and after; with sums they catch it."""
    keys, slots, generations = fill(pool, 4)
    copy = peer.read

    def overtaken(wanted: Any, rows: Any, out: Any) -> int:
        done = copy(wanted, rows, out)
        pool.arena.headers["generation"][slots[2]] += np.uint64(1)
        return done

    peer.read = overtaken  # type: ignore[method-assign]
    out = np.zeros((4, LAYOUT.slot_bytes), np.uint8)
    verdicts = read([Part(peer, None, slots)], out, keys, generations, LAYOUT.block_bytes, verify=False)
    assert verdicts.tolist() == [0, 0, Verdict.RECYCLED, 0]


def test_a_torn_copy_is_read_again_and_damage_is_an_error(pool: Pool, peer: MappedPeer) -> None:
    keys, slots, generations = fill(pool, 4)
    copy, torn = peer.read, [True]

    def tears_once(wanted: Any, rows: Any, out: Any) -> int:
        done = copy(wanted, rows, out)
        if torn.pop() if torn else False:
            out[1, 500] ^= 1
        return done

    peer.read = tears_once  # type: ignore[method-assign]
    out = np.zeros((4, LAYOUT.slot_bytes), np.uint8)
    verdicts = read([Part(peer, None, slots)], out, keys, generations, LAYOUT.block_bytes, verify=True)
    assert not verdicts.any()
    pool.arena.data[slots[1], 0] ^= 1
    with pytest.raises(ChecksumMismatch, match=f"slot {slots[1]}"):
        read([Part(peer, None, slots)], out, keys, generations, LAYOUT.block_bytes, verify=True)
