"""Shards, movers and clients that die, freeze or lie in mid-transfer: an error in time, never wrong bytes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

from kvstore import messages as m
from kvstore import wire
from kvstore.bench.far import LANES
from kvstore.bench.far import only as lane
from kvstore.calls import TimedOut
from kvstore.calls.rpc import RpcCalls
from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.errors import BadRequest, DeadlineExceeded, ShardUnavailable, StagingRejected, StoreError
from kvstore.header import sums
from tests.kvstore.nixl_rig import NEEDS_NIXL, mover_of, state_of, stopped, until
from tests.kvstore.process_rig import LAYOUT, ROOT, Helper, blocks_for, some_keys

pytestmark = NEEDS_NIXL
BLOCKS = 256


@pytest.fixture(params=list(LANES))
def anyhow(request: pytest.FixtureRequest) -> Iterator[str]:
    with lane(request.param):
        yield request.param


@pytest.fixture
def tcp() -> Iterator[None]:
    with lane("tcp"):
        yield


@pytest.fixture
def cluster(anyhow: str) -> Iterator[LocalCluster]:
    with LocalCluster(1, LAYOUT, BLOCKS, nixl=True) as running:
        yield running


@pytest.fixture
def tcp_cluster(tcp: None) -> Iterator[LocalCluster]:
    with LocalCluster(1, LAYOUT, BLOCKS, nixl=True) as running:
        yield running


async def connect(cluster: LocalCluster, **options: object) -> Client:
    given = {"deadline_ms": 30_000, **options}
    return await Client.connect(cluster.targets, LAYOUT, transport="nixl", **given)  # type: ignore[arg-type]


# --- shards ---------------------------------------------------------------------------------------------------------


async def test_a_killed_shard_is_an_error_at_once_and_comes_back(cluster: LocalCluster) -> None:
    keys = some_keys(64, seed=1)
    async with await connect(cluster) as client:
        await client.put(keys, blocks_for(keys))
        at = await client.lookup(keys, lease_ms=30_000)
        mover = mover_of(cluster.pids[0])
        out = client.buffer(len(keys))

        async def read_on() -> float:
            while True:
                try:
                    await client.get(at, out)
                except ShardUnavailable:
                    return time.monotonic()

        async def write_on() -> None:
            for seed in range(1000, 9999):
                try:
                    await client.put(some_keys(32, seed), blocks_for(some_keys(32, seed)))
                except ShardUnavailable:
                    return

        reading, writing = asyncio.create_task(read_on()), asyncio.create_task(write_on())
        await asyncio.sleep(0.3)
        killed = time.monotonic()
        await asyncio.to_thread(cluster.kill, 0)
        assert await asyncio.wait_for(reading, 20.0) - killed < 10.0  # not by the deadline of 30 s
        with pytest.raises(ShardUnavailable):
            await client.get(keys)
        with pytest.raises(ShardUnavailable):
            await client.put(keys, blocks_for(keys))
        await asyncio.wait_for(writing, 20.0)
        await until(lambda: client.staging.quarantined == 0, "what a dead shard had been told to pull is ours again")
        await until(lambda: state_of(mover) in ("", "Z"), "the mover ends with its shard")
        await asyncio.to_thread(cluster.restart, 0)
        assert not (await client.get(keys)).found.any()
        await client.put(keys, blocks_for(keys))
        assert ((await client.get(keys, out)).data == blocks_for(keys)).all()
        assert client.staging.quarantined == 0


async def test_a_killed_mover_is_started_again_and_no_block_is_lost(cluster: LocalCluster) -> None:
    keys = some_keys(64, seed=2)
    async with await connect(cluster) as client:
        await client.put(keys, blocks_for(keys))
        before = mover_of(cluster.pids[0])
        os.kill(before, signal.SIGKILL)
        await until(lambda: not client.shards.links[0].up, "the client's peer is lost")
        assert ((await client.get(keys, deadline_ms=20_000)).data == blocks_for(keys)).all()
        assert mover_of(cluster.pids[0]) != before
        more = some_keys(8, seed=3)
        await client.put(more, blocks_for(more))
        assert ((await client.get(more)).data == blocks_for(more)).all()


async def test_a_frozen_shard_is_an_error_within_the_deadline_and_its_memory_can_still_be_read(
    cluster: LocalCluster,
) -> None:
    keys = some_keys(16, seed=4)
    async with await connect(cluster) as client:
        await client.put(keys, blocks_for(keys))
        at = await client.lookup(keys, lease_ms=60_000)
        cluster.kill(0, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(ShardUnavailable):
                await client.get(keys, deadline_ms=500)
            with pytest.raises(DeadlineExceeded):
                await client.put(some_keys(2, seed=5), blocks_for(some_keys(2, seed=5)), deadline_ms=500)
            assert time.monotonic() - began < 5
            assert ((await client.get(at, deadline_ms=2_000)).data == blocks_for(keys)).all()
        finally:
            cluster.kill(0, signal.SIGCONT)
        assert ((await client.get(keys)).data == blocks_for(keys)).all()
        await until(lambda: client.staging.quarantined == 0, "the put that was given up is settled")


async def test_a_read_that_was_given_up_cannot_harm_a_later_one(tcp_cluster: LocalCluster) -> None:
    """Over tcp a frozen mover answers nothing, and what was asked for still lands when it goes on."""
    keys, others = some_keys(64, seed=6), some_keys(64, seed=7)
    async with await connect(tcp_cluster) as client:
        await client.put(keys, blocks_for(keys))
        await client.put(others, blocks_for(others))
        at = await client.lookup(keys, lease_ms=60_000)
        elsewhere = await client.lookup(others, lease_ms=60_000)
        out = client.buffer(64)
        mover = mover_of(tcp_cluster.pids[0])
        os.kill(mover, signal.SIGSTOP)
        await until(lambda: stopped(mover), "the mover is frozen")
        try:
            for into in (out, None):
                with pytest.raises(ShardUnavailable, match="has not answered within 300 ms"):
                    await client.get(at, into, deadline_ms=300)
            with pytest.raises(DeadlineExceeded, match="use another"):
                await client.get(elsewhere, out, deadline_ms=300)
        finally:
            os.kill(mover, signal.SIGCONT)
        for _ in range(20):
            assert ((await client.get(elsewhere)).data == blocks_for(others)).all()
        owner = client._transport._nixl._agents.reads  # type: ignore[union-attr]
        await until(lambda: owner.under_way == 0, "the reads that were given up have ended")
        assert ((await client.get(elsewhere, out)).data == blocks_for(others)).all()


# --- clients --------------------------------------------------------------------------------------------------------

GUEST = """
import asyncio, os, sys
import numpy as np
from kvstore.client import Client
from kvstore.header import sums
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys

async def main():
    client = await Client.connect(sys.argv[1], LAYOUT, transport="nixl", deadline_ms=30_000)
    run = await client.stage(int(sys.argv[2]))
    run.data[:] = blocks_for(some_keys(len(run), int(sys.argv[3])))
    say({"client": client.shards.links[0].facts["client"], "slots": run.slots.tolist()})
    while True:
        await asyncio.sleep(0.05)

asyncio.run(main())
"""


class Guest(Helper):
    """A client in a process of its own that has staged blocks; we send its requests for it."""

    def __init__(self, cluster: LocalCluster, blocks: int, seed: int) -> None:
        super().__init__(GUEST, cluster.targets, str(blocks), str(seed))
        said = self.heard(60)
        self.client = int(said["client"])
        self.slots = np.array(said["slots"], np.int64)
        self.keys = some_keys(blocks, seed)
        self._calls = RpcCalls(cluster.addresses[0])

    async def ask(self, message: object, deadline_ms: int = 5_000, ticket: int = 0, wait_s: float = 10.0) -> object:
        envelope = m.Envelope(0, deadline_ms, "", self.client, ticket)
        reply = await self._calls.call(type(message), wire.pack_request(envelope, message), wait_s)
        answer = wire.unpack_reply(reply)[1]
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def put(self, slots: np.ndarray | None = None) -> m.Put:
        slots = self.slots if slots is None else slots
        keys = self.keys[: len(slots)]
        chains = np.ascontiguousarray(keys).view(np.uint8).reshape(len(keys), 32)[:, :24]
        return m.Put(keys, slots, sums(blocks_for(keys)), np.full(len(keys), 16), chains)

    async def close(self) -> None:
        await self._calls.close()


@pytest.mark.parametrize("ends_by", [signal.SIGCONT, signal.SIGKILL])
async def test_a_client_frozen_in_mid_pull_holds_nothing_but_landing_slots(
    tcp_cluster: LocalCluster, ends_by: signal.Signals
) -> None:
    mover = mover_of(tcp_cluster.pids[0])
    with Guest(tcp_cluster, 64, seed=20) as guest:
        guest.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            await guest.ask(guest.put(), deadline_ms=400, ticket=7)
        assert time.monotonic() - began < 5
        async with await Client.connect(tcp_cluster.targets, LAYOUT) as near:
            assert not (await near.get(guest.keys)).found.any()
            everything = some_keys(BLOCKS, seed=21)  # no slot of the pool waits for the frozen client
            await near.put(everything, blocks_for(everything))
        cancel = wire.Cancel(np.array([7], np.uint64))
        with pytest.raises(TimedOut):  # its memory may still be read: that is not acknowledged
            await guest.ask(cancel, wait_s=0.5)
        guest.process.send_signal(ends_by)
        await guest.ask(cancel)
        async with await connect(tcp_cluster) as other:
            assert not (await other.get(guest.keys)).found.any()
            keys = some_keys(100, seed=22)
            await other.put(keys, blocks_for(keys))
            assert ((await other.get(keys)).data == blocks_for(keys)).all()
        assert mover_of(tcp_cluster.pids[0]) == mover
        await guest.close()


async def test_a_client_killed_again_and_again_in_mid_pull_publishes_nothing_wrong(cluster: LocalCluster) -> None:
    for turn in range(3):
        with Guest(cluster, 64, seed=30 + turn) as guest:
            asked = asyncio.create_task(guest.ask(guest.put(), deadline_ms=3_000, ticket=1))
            await asyncio.sleep(0.002 * turn)
            guest.process.kill()
            try:
                await asked
            except StoreError as error:
                # BadRequest: its client had been forgotten before it came.
                assert isinstance(error, StagingRejected | DeadlineExceeded | BadRequest), error  # noqa: PT017
            async with await Client.connect(cluster.targets, LAYOUT) as near:
                blocks = await near.get(guest.keys)
                assert (blocks.data[blocks.found] == blocks_for(guest.keys)[blocks.found]).all()
            await guest.close()
    keys = some_keys(16, seed=40)
    async with await connect(cluster) as client:
        await client.put(keys, blocks_for(keys))
        assert ((await client.get(keys)).data == blocks_for(keys)).all()


async def test_a_client_cannot_have_memory_pulled_that_it_has_not_registered(cluster: LocalCluster) -> None:
    with Guest(cluster, 8, seed=50) as guest:
        outside = np.array([1 << 20, *guest.slots[1:].tolist()], np.int64)
        with pytest.raises(StagingRejected, match="outside the arena"):
            await guest.ask(guest.put(outside), ticket=1)
        await guest.ask(guest.put(), ticket=2)
        async with await Client.connect(cluster.targets, LAYOUT) as near:
            assert ((await near.get(guest.keys)).data == blocks_for(guest.keys)).all()
        await guest.close()


async def test_clients_leave_by_dying(cluster: LocalCluster) -> None:
    """Leases of a killed client go with it at once."""
    async with await Client.connect(cluster.targets, LAYOUT) as near:
        with Guest(cluster, 8, seed=60) as guest:
            await guest.ask(guest.put(), ticket=1)
            located = await guest.ask(m.Lookup(guest.keys, lease_ms=60_000))
            assert located.lease  # type: ignore[attr-defined]
            guest.process.kill()

            async def all_fit() -> bool:
                everything = some_keys(BLOCKS, seed=61)
                try:
                    await near.put(everything, blocks_for(everything))
                except StoreError:
                    return False
                return True

            await until(all_fit, "the lease of the killed client is gone")
            await guest.close()


# --- endings --------------------------------------------------------------------------------------------------------

ENDING = """
import sys
import numpy as np
from kvstore.sync import SyncClient
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys

client = SyncClient(sys.argv[1], LAYOUT, transport="nixl", deadline_ms=30_000)
keys = some_keys(8, 70)
client.put(keys, blocks_for(keys))
assert (client.get(keys).data == blocks_for(keys)).all()
if sys.argv[2] == "close":
    client.close()
sys.exit(int(sys.argv[3]))
"""


async def test_processes_end_with_their_own_exit_code(tcp_cluster: LocalCluster) -> None:
    """Also with UCX's InfiniBand module loaded, whose library crashes a process that is done."""
    for modules, how, code in (("^ib", "close", 0), ("^ib", "leave", 3), ("all", "close", 3), ("all", "leave", 0)):
        environment = {**os.environ, "UCX_MODULES": modules}
        words = [sys.executable, "-c", ENDING, tcp_cluster.targets, how, str(code)]
        done = await asyncio.to_thread(
            subprocess.run, words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (code, ""), (modules, how)


async def test_a_shard_ends_cleanly_with_clients_inside(cluster: LocalCluster) -> None:
    async with await connect(cluster) as client:
        keys = some_keys(8, seed=80)
        await client.put(keys, blocks_for(keys))
        mover = mover_of(cluster.pids[0])
        await asyncio.to_thread(cluster.kill, 0, signal.SIGTERM)
        assert cluster.processes[0].returncode == 0
        assert cluster.log(0) == ""
        assert state_of(mover) == ""
        with pytest.raises(ShardUnavailable):
            await client.get(keys)
