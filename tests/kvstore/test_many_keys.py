"""Very many keys at once: messages are cut, deadlines hold between two pieces of a get, and no row is lost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from kvstore import client_base, fetch
from kvstore import messages as m
from kvstore.client import Client, SyncClient
from kvstore.cluster import LocalCluster
from kvstore.errors import BadRequest, LeaseExpired
from kvstore.locations import State
from kvstore.wire import MAX_ROWS
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys

N = 100
K = some_keys(N, seed=1)
B = blocks_for(K)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(2, LAYOUT, 256) as running:
        yield running


def among(others: int) -> tuple[np.ndarray, np.ndarray]:
    """The keys of the blocks among many that are not there, and where they are."""
    rng = np.random.default_rng(5)
    keys = rng.integers(0, 1 << 63, (others + N, 4), np.uint64)
    keys[:, 3] &= np.uint64(0xFFFF << 32)
    at = np.sort(rng.choice(len(keys), N, replace=False))
    keys[at] = K
    return keys, at


async def test_more_keys_than_a_message_holds(cluster: LocalCluster) -> None:
    keys, at = among(2 * MAX_ROWS + 1000)
    async with await Client.connect(cluster.targets, LAYOUT, deadline_ms=60_000) as client:
        await client.put(K, B)
        found = await client.lookup(keys, lease_ms=60_000)
        assert np.flatnonzero(found.found).tolist() == at.tolist()
        assert (found.miss[~found.found] == m.Miss.ABSENT).all()
        assert (found.until_ms[at] > 0).all()
        blocks = await client.get(found.rows(slice(int(at[0]), int(at[-1]) + 1)))
        assert (blocks.data[blocks.found] == B).all()
        removed = await client.remove(keys)
        assert np.flatnonzero(removed).tolist() == at.tolist()


async def test_leases_of_several_messages_are_kept_together(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_base, "MAX_ROWS", 16)
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        await client.put(K, B)
        found = await client.lookup(K, lease_ms=60_000)
        assert sum(len(leases) for leases in found.leases.values()) >= N // 16
        before = found.until_ms.copy()
        await client.pin(found)
        assert (found.until_ms > before).all()
        await client.unpin(found, 60_000)
        await client.renew(found, 0)
        again = await client.lookup(K, lease_ms=60_000)
        number, leases = next(iter(again.leases.items()))
        release = m.Lease(np.array(leases[-1:], np.uint64))
        await client.shards.links[number].call(release, client._deadline(None))
        with pytest.raises(LeaseExpired):
            await client.renew(again, 1_000)
        gap = np.concatenate([K[:40], some_keys(1, seed=9), K[40:]])
        assert (await client.lookup(gap, prefix=True, counted=True)).prefix == 40


@pytest.mark.parametrize("plain", [False, True])
async def test_a_get_in_pieces_is_the_same_get(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    monkeypatch.setattr(fetch, "PIECE_ROWS", 1)
    keys, at = among(1000)
    with SyncClient(cluster.targets, LAYOUT) as sync:
        put = sync.put(K, B)
        async with await Client.connect(cluster.targets, LAYOUT) as client:
            clocks = np.zeros(len(keys), np.uint64)
            clocks[at] = put.clock
            clocks[at[::3]] += np.uint64(1 << 40)
            located = sync.lookup(keys, lease_ms=60_000)
            for what in (keys, located):
                get = sync.get if plain else client.get
                blocks = get(what, min_clock=clocks, deadline_ms=300)
                blocks = blocks if plain else await blocks
                fresh = np.ones(N, np.bool_)
                fresh[::3] = False
                assert np.flatnonzero(blocks.found).tolist() == at[fresh].tolist()
                assert (blocks.data[at[fresh]] == B[fresh]).all()
                assert (blocks.state[at[::3]] == State.STALE).all()
                assert (np.delete(blocks.state, at) == State.ABSENT).all()


async def test_a_deadline_ends_a_large_get_between_two_pieces(cluster: LocalCluster) -> None:
    keys, _ = among(100_000)
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        late = await client.get(keys, deadline_ms=1)
        assert (late.state[-1000:] == State.LATE).all()
        assert (late.state[:64] != State.LATE).all(), "what is asked first is always looked at"
        assert not (await client.get(keys, deadline_ms=60_000)).found[: len(keys) - N].all()


async def test_a_key_names_one_block(cluster: LocalCluster) -> None:
    """Seven of eight were dropped without a word."""
    same = np.repeat(some_keys(1, seed=7), 40, axis=0)
    for staging in (64, 16):  # in one message, or in several
        async with await Client.connect(cluster.targets, LAYOUT, staging_blocks=staging) as client:
            with pytest.raises(BadRequest, match="earlier row"):
                await client.put(same, blocks_for(some_keys(40, seed=8)))
            assert not (await client.lookup(same[:1])).found.any()
            await client.put(same, np.repeat(B[:1], 40, axis=0))
            assert ((await client.get(same[:1])).data == B[:1]).all()
            await client.remove(same[:1])
