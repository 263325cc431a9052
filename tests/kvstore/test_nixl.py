"""The nixl transport on real processes, over tcp and over shared memory: what comes back is what was put."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from kvstore import messages as m
from kvstore.bench.far import LANES
from kvstore.bench.far import only as lane
from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.errors import BadRequest, LayoutMismatch, ShardUnavailable
from kvstore.layout import Layout
from kvstore.locations import Locations
from kvstore.sync import SyncClient
from tests.kvstore.nixl_rig import NEEDS_NIXL, page_of, sample
from tests.kvstore.process_rig import LAYOUT, blocks_for, chain, digests_of, some_keys, tail_keys

pytestmark = NEEDS_NIXL
BLOCKS = 512


@pytest.fixture(scope="module", params=list(LANES))
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Two shards that offer nixl; agents of this process take the same lane."""
    with lane(request.param), LocalCluster(2, LAYOUT, BLOCKS, nixl=True, placement="head-group") as running:
        running.lane = request.param  # type: ignore[attr-defined]
        yield running


async def connect(cluster: LocalCluster, **options: object) -> Client:
    given = {"deadline_ms": 30_000, **options}
    return await Client.connect(cluster.targets, LAYOUT, transport="nixl", **given)  # type: ignore[arg-type]


def both_groups(n: int, seed: int) -> np.ndarray:
    """Keys that have their homes on both shards."""
    return np.concatenate([some_keys(n, seed), some_keys(n, seed + 1, group=1), some_keys(n, seed + 2, layer=1)])


async def test_what_was_put_comes_back(cluster: LocalCluster) -> None:
    keys = both_groups(40, seed=1)
    data = blocks_for(keys)
    async with await connect(cluster) as client:
        assert not (await client.get(keys)).found.any()
        put = await client.put(keys, data)
        assert not put.existed.any()
        assert {link.afar for link in client.shards.links} == {True}
        for verify in (True, False):
            plain = await client.get(keys, verify=verify)
            assert plain.found.all()
            assert (plain.data == data).all()
        out = client.buffer(len(keys))
        straight = await client.get(keys, out)
        assert straight.slots is out
        assert (straight.data == data).all()
        again = await client.put(keys, data)
        assert again.existed.all()
        assert (again.slot == put.slot).all()


async def test_known_places_are_read_while_the_lease_runs(cluster: LocalCluster) -> None:
    keys = both_groups(20, seed=11)
    async with await connect(cluster) as client:
        await client.put(keys, blocks_for(keys))
        at = await client.lookup(keys, lease_ms=5_000)
        assert at.found.all()
        assert at.leased
        for verify in (True, False):
            assert ((await client.get(at, verify=verify)).data == blocks_for(keys)).all()
        rows = np.array([7, 3, 30, 4, 5])
        part = rows_of(at, rows)
        assert ((await client.get(part)).data == blocks_for(keys)[rows]).all()
        await client.release(at)


def rows_of(at: Locations, rows: np.ndarray) -> Locations:
    return Locations(*(getattr(at, name)[rows] for name in _COLUMNS), leases=dict(at.leases))


_COLUMNS = ("keys", "shard", "slot", "generation", "clock", "valid", "miss", "until_ms")


async def test_both_transports_see_one_store(cluster: LocalCluster) -> None:
    keys = both_groups(16, seed=21)
    async with await connect(cluster) as far, await Client.connect(cluster.targets, LAYOUT) as near:
        assert {link.afar for link in near.shards.links} == {False}
        await far.put(keys[:24], blocks_for(keys[:24]))
        await near.put(keys[24:], blocks_for(keys[24:]))
        for client in (far, near):
            assert ((await client.get(keys)).data == blocks_for(keys)).all()
        assert (await far.remove(keys[:3])).all()
        assert (await near.get(keys)).found.tolist() == [False] * 3 + [True] * 45


async def test_appends_and_tails(cluster: LocalCluster) -> None:
    async with await connect(cluster) as client, await client.open_session() as session:
        tokens = list(range(20))
        first = chain(tokens)
        keys = tail_keys(first, session.number)
        version = blocks_for(keys, 1)
        done = await client.append(session, keys, version, valid=4, digests=digests_of(first))
        agree, at = await client.match_tail(session, keys, digests_of(first), lease_ms=2_000)
        assert agree == 4
        assert ((await client.get(at)).data == version).all()
        second = chain([*tokens, 20])
        newer = blocks_for(keys, 2)
        await client.append(session, keys, newer, valid=5, digests=digests_of(second), expected=done.clock)
        found = await client.get(keys, min_valid=5)
        assert (found.data == newer).all()
        assert found.valid.tolist() == [5]
        old = await client.get(at, min_clock=int(done.clock[0]) + 1, deadline_ms=2_000)
        assert (old.data == newer).all()  # the place held an older version than was needed: it was looked up again


async def test_a_run_is_one_descriptor(cluster: LocalCluster) -> None:
    keys = some_keys(64, seed=31)
    url = cluster.metrics_urls[int((await asyncio.to_thread(_home, cluster, keys))[0])]
    async with await connect(cluster) as client:
        puts = [await sample(url, f"kv_transfer_descriptors_{what}") for what in ("sum", "count")]
        put = await client.put(keys, blocks_for(keys), one_run=True)
        assert (np.diff(put.slot) == 1).all()
        assert await sample(url, "kv_transfer_descriptors_sum") == max(0, puts[0]) + 1
        assert await sample(url, "kv_transfer_descriptors_count") == max(0, puts[1]) + 1
        at = await client.lookup(keys, lease_ms=5_000)
        await client.report()
        before = await sample(url, "kv_read_descriptors_total")
        await client.get(at, client.buffer(64))
        await client.report()
        assert await sample(url, "kv_read_descriptors_total") == before + 1
        scattered = rows_of(at, np.arange(0, 64, 2))
        await client.get(scattered, client.buffer(32))
        await client.report()
        assert await sample(url, "kv_read_descriptors_total") == before + 1 + 32


def _home(cluster: LocalCluster, keys: np.ndarray) -> np.ndarray:
    with SyncClient(cluster.targets, LAYOUT) as client:
        return client.client.shards.home(keys)


async def test_the_page_says_which_lane_is_in_use(cluster: LocalCluster) -> None:
    keys = both_groups(4, seed=41)
    expected = {"tcp": 'lane="tcp"', "shm": 'lane="cma"'}[cluster.lane]  # type: ignore[attr-defined]
    async with await connect(cluster) as client:
        await client.put(keys, blocks_for(keys))
        await client.get(keys)
        for url in cluster.metrics_urls:
            for _ in range(100):
                page = await page_of(url)
                lines = [line for line in page.splitlines() if line.startswith("kv_transport_info")]
                if any(expected in line and 'transport="nixl"' in line for line in lines):
                    break
                await asyncio.sleep(0.05)
            else:
                pytest.fail(f"no nixl row with {expected}: {lines}")
            assert any('transport="mapped"' in line for line in lines)


async def test_overwritten_blocks_are_never_taken_for_others(cluster: LocalCluster) -> None:
    """Readers at stale places and by key, while the blocks leave and their slots go to others: the block asked for, or
    a miss."""
    keys = both_groups(60, seed=51)
    async with await connect(cluster) as reader, await Client.connect(cluster.targets, LAYOUT) as writer:
        await writer.put(keys, blocks_for(keys))
        at = await reader.lookup(keys)
        going = True

        async def churn() -> None:
            seed = 10_000
            while going:
                seed += 3
                others = both_groups(60, seed)
                await writer.put(others, blocks_for(others))

        churning = asyncio.create_task(churn())
        try:
            for turn in range(10):
                if turn == 4:
                    assert (await writer.remove(keys)).all()
                for what in (at, keys):
                    blocks = await reader.get(what, verify=turn % 2 == 0, deadline_ms=30_000)
                    good = blocks.found
                    assert (blocks.data[good] == blocks_for(keys)[good]).all()
                    assert turn < 4 or what is at or not good.any()
            moved = await reader.get(at)  # wherever they were, others are now, or nobody
            assert (moved.data[moved.found] == blocks_for(keys)[moved.found]).all()
        finally:
            going = False
            await churning


async def test_refusals_are_one_line(cluster: LocalCluster) -> None:
    other = Layout(**{**LAYOUT.__dict__, "head_dim": 64})
    with pytest.raises(LayoutMismatch, match="head_dim"):
        await Client.connect(cluster.targets, other, transport="nixl")
    with pytest.raises(BadRequest, match="no transport 'rdma'"):
        await Client.connect(cluster.targets, LAYOUT, transport="rdma")


async def test_a_shard_without_nixl_says_so() -> None:
    with LocalCluster(1, LAYOUT, 8) as plain:
        with pytest.raises(ShardUnavailable, match="does not offer nixl: start it with --nixl"):
            await Client.connect(plain.targets, LAYOUT, transport="nixl")
        async with await Client.connect(plain.targets, LAYOUT) as client:
            assert not client.shards.afar


async def test_a_put_larger_than_the_staging_arena_goes_in_batches(cluster: LocalCluster) -> None:
    keys = some_keys(100, seed=61)
    async with await connect(cluster, staging_blocks=16) as client:
        await client.put(keys, blocks_for(keys))
        assert ((await client.get(keys)).data == blocks_for(keys)).all()
        with pytest.raises(BadRequest):
            await client.put(some_keys(40, seed=62), blocks_for(some_keys(40, seed=62)), one_run=True)


def test_plain_code_and_threads(cluster: LocalCluster) -> None:
    keys = both_groups(10, seed=71)
    with SyncClient(cluster.targets, LAYOUT, transport="nixl", deadline_ms=30_000) as client:
        client.put(keys, blocks_for(keys))
        out = client.buffer(len(keys))
        assert (client.get(keys, out).data == blocks_for(keys)).all()
        at = client.lookup(keys, lease_ms=2_000)
        assert (client.get(at).data == blocks_for(keys)).all()
        assert int(at.miss.max()) == int(m.Miss.NONE)
        peer = client.client.shards.peer(0)
        mine = np.flatnonzero(at.shard == 0)
        room = np.zeros((len(mine), LAYOUT.slot_bytes), np.uint8)
        assert peer.read(at.slot[mine], None, room) >= 1
        assert (room[:, 128 : 128 + LAYOUT.block_bytes] == blocks_for(keys)[mine]).all()
        assert (peer.generations(at.slot[mine]) == at.generation[mine]).all()
