"""A client against real shards: what is put is found and read, in plain code too; deadlines hold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import numpy as np
import pytest

from kvstore import messages as m
from kvstore.client import Client, SyncClient
from kvstore.cluster import LocalCluster
from kvstore.deadline import Deadline
from kvstore.errors import (
    BadRequest,
    DeadlineExceeded,
    LayoutMismatch,
    LeaseExpired,
    NoRun,
    PoolExhausted,
    SessionUnknown,
    ShardUnavailable,
    TailConflict,
)
from kvstore.keys import block_keys, tail_digest
from kvstore.layout import Layout
from kvstore.locations import State
from kvstore.messages import Durability, Miss
from tests.kvstore.process_rig import LAYOUT, blocks_for, chain, digests_of, some_keys, tail_keys

BLOCKS = 512


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, LAYOUT, BLOCKS, placement="head-group-window") as running:
        yield running


def everywhere(n: int, seed: int) -> np.ndarray:
    """Keys on all three shards."""
    return np.concatenate(
        [some_keys(n, seed + 10 * layer, layer=layer, group=group) for layer in (0, 1) for group in (0, 1)]
    )


async def test_what_is_put_is_found_and_read(cluster: LocalCluster) -> None:
    keys = everywhere(20, seed=1)
    data = blocks_for(keys)
    async with await Client.connect(cluster.file, LAYOUT) as client:
        assert len(np.unique(client.shards.home(keys))) == 3
        published = await client.put(keys, data)
        assert not published.existed.any()
        again = await client.put(keys, data)
        assert again.existed.all()
        assert (again.slot == published.slot).all()

        by_index = await client.lookup(keys)
        by_call = await client.lookup(keys, counted=True)
        assert (by_index.slot == published.slot).all()
        assert (by_call.slot == published.slot).all()
        assert (by_index.generation == by_call.generation).all()
        assert (by_call.clock == published.clock).all()

        blocks = await client.get(keys)
        assert blocks.found.all()
        assert (blocks.data == data).all()
        assert (blocks.valid == LAYOUT.block_tokens).all()
        assert (blocks.clock == published.clock).all()


@pytest.mark.parametrize("verify", [True, False])
async def test_rows_that_are_not_there_are_misses_among_those_that_are(cluster: LocalCluster, verify: bool) -> None:
    keys = everywhere(12, seed=2)
    there = np.arange(len(keys)) % 3 != 1
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        await client.put(keys[there], blocks_for(keys[there]))
        located = await client.lookup(keys, counted=True)
        assert (located.found == there).all()
        assert (located.miss[~there] == Miss.ABSENT).all()
        for what in (keys, located, await client.lookup(keys)):
            blocks = await client.get(what, verify=verify)
            assert (blocks.found == there).all()
            assert (blocks.state[~there] == State.ABSENT).all()
            assert (blocks.data[there] == blocks_for(keys[there])).all()


async def test_a_prefix_ends_at_the_first_miss(cluster: LocalCluster) -> None:
    keys = everywhere(6, seed=3)
    there = np.ones(len(keys), bool)
    there[9] = False
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        await client.put(keys[there], blocks_for(keys[there]))
        for options in ({}, {"lease_ms": 1000}):
            located = await client.lookup(keys, prefix=True, **options)
            assert located.prefix == 9
            assert not located.found[9:].any()
            assert not located.until_ms[9:].any()


async def test_blocks_go_into_the_callers_buffer(cluster: LocalCluster) -> None:
    keys = some_keys(8, seed=4)
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        await client.put(keys, blocks_for(keys).view(np.float16).reshape(8, *LAYOUT.block_shape))
        out = client.buffer(8)
        blocks = await client.get(keys[::-1].copy(), out)
        assert blocks.slots is out
        assert (blocks.data == blocks_for(keys)[::-1]).all()
        with pytest.raises(BadRequest, match="contiguous uint8"):
            await client.get(keys, np.zeros((8, 7), np.uint8))


async def test_a_staged_run_is_put_without_a_copy(cluster: LocalCluster) -> None:
    keys = some_keys(8, seed=5)
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        free = client.staging.free
        run = await client.stage(8)
        run.data[:] = blocks_for(keys)
        await client.put(keys, run)
        assert client.staging.free == free
        assert ((await client.get(keys)).data == blocks_for(keys)).all()


async def test_a_put_larger_than_the_staging_arena_goes_in_batches(cluster: LocalCluster) -> None:
    keys = some_keys(50, seed=6)
    async with await Client.connect(cluster.targets, LAYOUT, staging_blocks=8) as client:
        await client.put(keys, blocks_for(keys))
        assert ((await client.get(keys)).data == blocks_for(keys)).all()
        assert client.staging.free == 8
        with pytest.raises(BadRequest, match="staging arena"):
            await client.put(keys, blocks_for(keys), one_run=True)


async def test_many_puts_and_gets_at_once(cluster: LocalCluster) -> None:
    async with await Client.connect(cluster.targets, LAYOUT, staging_blocks=16) as client:

        async def one(seed: int) -> None:
            keys = some_keys(4, seed=100 + seed)
            await client.put(keys, blocks_for(keys))
            assert ((await client.get(keys)).data == blocks_for(keys)).all()

        await asyncio.gather(*(one(seed) for seed in range(30)))


async def test_a_lease_ends_by_the_readers_own_clock(cluster: LocalCluster) -> None:
    keys = some_keys(3, seed=7)
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        await client.put(keys, blocks_for(keys))
        located = await client.lookup(keys, lease_ms=150)
        assert (await client.get(located)).found.all()
        await client.renew(located, 400)
        await asyncio.sleep(0.2)
        assert (await client.get(located)).found.all()
        await asyncio.sleep(0.3)
        with pytest.raises(LeaseExpired):
            await client.get(located)
        one = await client.lookup(keys[:1], lease_ms=30)
        await asyncio.sleep(0.05)
        with pytest.raises(LeaseExpired):
            await client.get(one, client.buffer(1))
        with pytest.raises(LeaseExpired):
            await client.renew(located, 100)


async def test_pins_hold_until_unpinned(cluster: LocalCluster) -> None:
    keys = some_keys(2, seed=8)
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        await client.put(keys, blocks_for(keys))
        located = await client.lookup(keys, lease_ms=60)
        await client.pin(located)
        await asyncio.sleep(0.15)
        assert (await client.get(located)).found.all()
        await client.unpin(located)


async def test_removed_keys_are_gone_and_the_shard_says_why(cluster: LocalCluster) -> None:
    keys = some_keys(4, seed=9)
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        await client.put(keys, blocks_for(keys))
        assert (await client.remove(keys)).all()
        assert not (await client.remove(keys)).any()
        assert (await client.lookup(keys, counted=True)).miss.tolist() == [Miss.REMOVED] * 4
        assert not (await client.get(keys)).found.any()


async def test_a_tail_grows_and_ends_in_its_full_block(cluster: LocalCluster) -> None:
    async with await Client.connect(cluster.targets, LAYOUT) as client, await client.open_session("chat") as session:
        tokens = list(range(900, 910))
        grown = chain(tokens)
        keys = tail_keys(grown, int(session))
        first = await client.append(session, keys, blocks_for(keys, 1), valid=10, digests=digests_of(grown))
        grown.extend([910, 911])
        with pytest.raises(TailConflict):
            await client.append(session, keys, blocks_for(keys, 2), valid=12, digests=digests_of(grown))
        second = await client.append(
            session, keys, blocks_for(keys, 2), valid=12, digests=digests_of(grown), expected=first.clock
        )
        assert second.clock > first.clock
        other = chain([*tokens[:7], 5, 6])
        agree, located = await client.match_tail(session, keys, digests_of(other), lease_ms=500)
        assert agree == 7
        assert ((await client.get(located)).data == blocks_for(keys, 2)).all()

        parent_keys = keys
        grown.extend([912, 913, 914, 915])
        full = block_keys(grown.digests[-1:], 0, 0)
        digests = np.frombuffer(b"".join(_digests_in_block(grown, [*tokens, *range(910, 916)])), np.uint8).reshape(
            -1, 24
        )
        await client.append(
            session,
            parent_keys,
            blocks_for(full),
            valid=16,
            digests=digests,
            expected=second.clock,
            full_keys=full,
        )
        assert ((await client.get(full)).data == blocks_for(full)).all()
        assert not (await client.get(parent_keys)).found.any()


def _digests_in_block(of, tokens):  # type: ignore[no-untyped-def]
    made = chain(tokens[:-1])
    return [*made.tail_digests(), of.digests[-1]]


async def test_one_need_holds_on_all_shards_of_an_append_whatever_their_clocks() -> None:
    with LocalCluster(2, LAYOUT, 64, placement="head-group") as cluster:
        async with (
            await Client.connect(cluster.targets, LAYOUT) as client,
            await Client.connect(cluster.targets, LAYOUT) as busy,
            await Client.connect(cluster.targets, LAYOUT) as fresh,
            await client.open_session() as session,
        ):
            grown = chain([1, 2, 3])
            tails = [tail_digest(grown.parent, int(session))]
            keys = np.concatenate([block_keys(tails, layer, group) for layer in (0, 1) for group in (0, 1)])
            home = client.shards.home(keys)
            assert set(home.tolist()) == {0, 1}
            for _ in range(40):  # one shard's clock runs far ahead of the other's
                await busy.shards.links[int(home[0])].call(m.Lookup(keys[:1]), Deadline(5000))
            first = await client.append(session, keys, blocks_for(keys, 1), valid=3, digests=digests_of(grown))
            grown.extend([4])
            # Of somebody who has heard of nothing but the versions that it is told to continue.
            second = await fresh.append(
                session, keys, blocks_for(keys, 2), valid=4, digests=digests_of(grown), expected=first.clock
            )
            assert len(set(second.clock.tolist())) == 2
            assert first.clock.max() < second.need <= second.clock.min()
            blocks = await client.get(keys, min_clock=second.need, deadline_ms=2000)
            assert (blocks.data == blocks_for(keys, 2)).all()


async def test_a_get_never_answers_with_less_than_its_step_needs(cluster: LocalCluster) -> None:
    async with await Client.connect(cluster.targets, LAYOUT) as client, await client.open_session() as session:
        grown = chain([1, 2, 3])
        keys = tail_keys(grown, int(session))
        first = await client.append(session, keys, blocks_for(keys, 1), valid=3, digests=digests_of(grown))
        leased = await client.lookup(keys, lease_ms=3000)
        grown.extend([4])
        second = await client.append(
            session, keys, blocks_for(keys, 2), valid=4, digests=digests_of(grown), expected=first.clock
        )
        # The leased place still holds the old version: fine for who asks for no more, never for who needs the new one.
        assert ((await client.get(leased)).data == blocks_for(keys, 1)).all()
        for need in ({"min_clock": int(second.clock[0])}, {"min_valid": 4}, {"min_clock": second.clock}):
            assert ((await client.get(leased, client.buffer(1), **need)).data == blocks_for(keys, 2)).all()
        blocks = await client.get(keys, min_valid=5, deadline_ms=50)
        assert blocks.state.tolist() == [State.STALE]
        assert not blocks.valid.any()

        async def later() -> None:
            await asyncio.sleep(0.05)
            grown.extend([5])
            await client.append(
                session, keys, blocks_for(keys, 3), valid=5, digests=digests_of(grown), expected=second.clock
            )

        waiting, _ = await asyncio.gather(client.get(keys, min_valid=5), later())
        assert (waiting.data == blocks_for(keys, 3)).all()


async def test_the_check_of_a_steps_need_can_be_switched_off_for_checkers(cluster: LocalCluster) -> None:
    keys = some_keys(1, seed=11)
    async with await Client.connect(cluster.targets, LAYOUT, enforce_need=False) as client:
        await client.put(keys, blocks_for(keys))
        assert (await client.get(keys, min_clock=1 << 60)).found.all()


async def test_a_session_is_one_number_on_every_shard_and_from_any_client(cluster: LocalCluster) -> None:
    keys = everywhere(2, seed=12)
    async with (
        await Client.connect(cluster.targets, LAYOUT) as one,
        await Client.connect(cluster.targets, LAYOUT) as two,
    ):
        session = await one.open_session("chat", ttl_ms=400, renew=False)
        await one.put(keys, blocks_for(keys), session=session)
        again = await two.open_session("chat", ttl_ms=400, number=int(session), renew=False)
        assert again.returned
        assert (await two.lookup(keys, session=again)).found.all()
        await asyncio.sleep(0.7)
        late = await two.open_session("chat", number=int(session), renew=False)
        assert not late.returned
        assert (await two.lookup(keys, counted=True)).miss.tolist() == [Miss.EXPIRED] * len(keys)
        await late.close()
        with pytest.raises(SessionUnknown):
            await two.put(keys, blocks_for(keys), session=late)


async def test_a_held_session_renews_itself(cluster: LocalCluster) -> None:
    keys = some_keys(2, seed=13)
    async with await Client.connect(cluster.targets, LAYOUT) as client, await client.open_session(ttl_ms=600) as held:
        await client.put(keys, blocks_for(keys), session=held)
        await asyncio.sleep(1.2)
        assert (await client.lookup(keys, counted=True)).found.all()


async def test_a_full_pool_refuses_and_says_so(cluster: LocalCluster) -> None:
    small = Layout("small", heads=1, head_dim=8, block_tokens=16, window_tokens=128, dtype="uint8")
    async with LocalCluster(1, small, 16) as tiny, await Client.connect(tiny.targets, small) as client:
        keys = some_keys(16, seed=14)
        data = np.zeros((16, small.block_bytes), np.uint8)
        async with await client.open_session() as session:
            await client.put(keys[:12], data[:12], session=session)
            with pytest.raises(PoolExhausted):
                await client.put(some_keys(8, seed=15), data[:8])
            await client.remove(keys[1:12:2])
            with pytest.raises(NoRun):
                await client.put(some_keys(7, seed=16), data[:7], one_run=True)
        with pytest.raises(BadRequest, match="durability"):
            await client.put(keys, data, durability=Durability.LOG_SYNC)


async def test_a_layout_that_differs_is_refused_by_its_field(cluster: LocalCluster) -> None:
    other = Layout("process-rig", layers=2, head_groups=2, heads=1, head_dim=32, window_tokens=128, dtype="bfloat16")
    with pytest.raises(LayoutMismatch, match="dtype") as refused:
        await Client.connect(cluster.targets, other)
    assert refused.value.field == "dtype"


async def test_targets_that_make_no_store_are_refused(cluster: LocalCluster) -> None:
    with pytest.raises(BadRequest, match="name all of them"):
        await Client.connect(cluster.addresses[:2], LAYOUT)
    with pytest.raises(BadRequest, match="twice"):
        await Client.connect([cluster.addresses[0]] * 3, LAYOUT)
    with pytest.raises(BadRequest, match="no address"):
        await Client.connect("nonsense", LAYOUT)
    with pytest.raises(BadRequest, match="No such file"):
        await Client.connect("/no/such/cluster.json", LAYOUT)
    with pytest.raises(ShardUnavailable):
        await Client.connect("127.0.0.1:1", LAYOUT)


async def test_waiting_for_a_staging_run_has_a_deadline(cluster: LocalCluster) -> None:
    keys = some_keys(4, seed=17)
    async with await Client.connect(cluster.targets, LAYOUT, staging_blocks=4) as client:
        run = await client.stage(4)
        with pytest.raises(DeadlineExceeded, match="staging run"):
            await client.put(keys, blocks_for(keys), deadline_ms=50)
        client.unstage(run)
        await client.put(keys, blocks_for(keys))


async def test_a_deadline_must_be_one(cluster: LocalCluster) -> None:
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        for wrong in (0, -1, float("nan")):
            with pytest.raises(BadRequest, match="deadline"):
                await client.lookup(some_keys(1, 0), counted=True, deadline_ms=wrong)


async def test_a_closed_client_says_so(cluster: LocalCluster) -> None:
    client = await Client.connect(cluster.targets, LAYOUT)
    await client.close()
    await client.close()
    with pytest.raises(ShardUnavailable, match="closed"):
        await client.get(some_keys(1, 0))


async def test_reads_are_reported_to_the_shard(cluster: LocalCluster) -> None:
    keys = some_keys(5, seed=18)
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        await client.put(keys, blocks_for(keys))
        await client.get(keys)
        home = int(client.shards.home(keys)[0])
        touch = client.shards.tallies[home].drain()
        assert touch.reads.batches == 1
        assert touch.reads.blocks_ok == 5
        assert touch.reads.bytes == 5 * LAYOUT.block_bytes
        assert touch.reads.descriptors == 1
        assert len(touch.slots) == 5
        await client.get(keys)
        await client.report()
        assert client.shards.tallies[home].drain().reads.batches == 0


def test_plain_code_does_the_same(cluster: LocalCluster) -> None:
    keys = everywhere(5, seed=19)
    with SyncClient(cluster.targets, LAYOUT) as client:
        client.put(keys, blocks_for(keys))
        out = client.buffer(len(keys))
        assert (client.get(keys, out).data == blocks_for(keys)).all()
        located = client.lookup(keys, lease_ms=2000)
        assert (client.get(located).data == blocks_for(keys)).all()
        one = client.lookup(keys[:1])
        assert (client.get(one, client.buffer(1)).data == blocks_for(keys)[:1]).all()
        client.release(located)
        with client.open_session("plain") as session:
            client.put(keys, blocks_for(keys), session=session)
        assert client.remove(keys).all()
        assert not client.get(keys).found.any()
        begun = time.monotonic()
        assert client.get(keys, min_valid=1, deadline_ms=100).state.tolist() == [State.ABSENT] * len(keys)
        assert time.monotonic() - begun < 30
    with pytest.raises(ShardUnavailable, match="closed"):
        client.get(keys)
    client.close()


def test_plain_code_from_several_threads(cluster: LocalCluster) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with SyncClient(cluster.targets, LAYOUT) as client:

        def work(seed: int) -> bool:
            keys = some_keys(6, seed=200 + seed)
            client.put(keys, blocks_for(keys))
            return all((client.get(keys).data == blocks_for(keys)).all() for _ in range(5))

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(16)))


async def test_a_plain_client_may_live_and_end_within_somebody_elses_loop(cluster: LocalCluster) -> None:
    with SyncClient(cluster.targets, LAYOUT) as client:
        assert not client.lookup(some_keys(1, 77)).found.any()
