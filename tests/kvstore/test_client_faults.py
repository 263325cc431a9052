"""Shards and clients that are stopped, killed or wrong at the worst moment: an error or a miss in time, never bytes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.deadline import Deadline
from kvstore.errors import ChecksumMismatch, DeadlineExceeded, LeaseExpired, ShardUnavailable, StagingRejected
from kvstore.header import sums
from kvstore.locations import Locations
from kvstore.messages import Put
from tests.kvstore.process_rig import LAYOUT, Helper, blocks_for, chain, digests_of, some_keys, tail_keys

BLOCKS = 64


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1, LAYOUT, BLOCKS) as running:
        yield running


async def until(true: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while True:
        found = true()
        if found if isinstance(found, bool) else await found:
            return
        assert time.monotonic() < end, f"not seen within {seconds:g} s: {what}"
        await asyncio.sleep(0.02)


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def staging_maps(pid: int) -> int:
    """Staging arenas that a shard's process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sum("kv-staging" in line for line in lines)


async def recycle(client: Client, seed: int) -> None:
    """Put so much that every block that may go goes."""
    for turn in range(4):
        others = some_keys(BLOCKS // 2, seed + turn)
        await client.put(others, blocks_for(others))


# --- a client that misbehaves -----------------------------------------------------------------------------------------


async def test_a_half_filled_run_is_refused_and_nothing_is_published(cluster: LocalCluster) -> None:
    """The client says what the run will hold, and has filled half of it when the shard pulls."""
    keys = some_keys(4, seed=1)
    data = blocks_for(keys)
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        run = await client.stage(4)
        run.data[:2] = data[:2]
        run.data[2:] = 0
        chains = keys.view(np.uint8).reshape(4, 32)[:, :24]
        message = Put(keys, run.slots, sums(data), np.full(4, 16), chains)
        with pytest.raises(ChecksumMismatch):
            await client.shards.links[0].call(message, Deadline(5000), ticket=77)
        assert not (await client.get(keys)).found.any()
        run.data[2:] = data[2:]
        await client.put(keys, run)
        assert ((await client.get(keys)).data == data).all()


HALF_FILLED = """
import asyncio, os, signal, sys
import numpy as np
from kvstore.client import Client
from kvstore.deadline import Deadline
from kvstore.header import sums
from kvstore.messages import Put
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys

async def main():
    client = await Client.connect(sys.argv[1], LAYOUT)
    keys = some_keys(4, seed=2)
    data = blocks_for(keys)
    run = await client.stage(4)
    run.data[:] = 0
    run.data[:2] = data[:2]
    put = Put(keys, run.slots, sums(data), np.full(4, 16), keys.view(np.uint8).reshape(4, 32)[:, :24])
    sent = asyncio.create_task(client.shards.links[0].call(put, Deadline(300), ticket=1))
    await asyncio.sleep(0)          # the call is on its way, or will be when we go on
    say("named")
    os.kill(os.getpid(), signal.SIGSTOP)
    run.data[2:] = data[2:]         # woken up late: finishes what it promised
    try:
        await sent
        say("published")
    except Exception as error:
        say(type(error).__name__)

asyncio.run(main())
"""


async def test_a_client_stopped_after_naming_a_half_filled_run_publishes_nothing(cluster: LocalCluster) -> None:
    keys = some_keys(4, seed=2)
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        with Helper(HALF_FILLED, cluster.targets) as helper:
            assert helper.heard() == "named"
            await until(lambda: stopped(helper.process.pid), "the client is stopped")
            await asyncio.sleep(0.5)
            assert not (await client.get(keys)).found.any()
            helper.process.send_signal(signal.SIGCONT)
            outcome = helper.heard()
        blocks = await client.get(keys)
        if outcome == "published":  # it was pulled only after the run was whole
            assert (blocks.data == blocks_for(keys)).all()
        else:
            assert outcome in ("ChecksumMismatch", "DeadlineExceeded", "ShardUnavailable")
            assert not blocks.found.any()


SCRIBBLER = """
import asyncio, sys, threading
import numpy as np
from kvstore.client import Client
from kvstore.errors import ChecksumMismatch
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys

async def main():
    client = await Client.connect(sys.argv[1], LAYOUT)
    run = await client.stage(16)
    going = True

    def scribble():
        value = 0
        while going:
            value = (value + 1) % 256
            run.data[15, -64:] = value

    thread = threading.Thread(target=scribble)
    thread.start()
    refused = published = 0
    for seed in range(60):
        keys = some_keys(16, seed=1000 + seed)
        run.data[:] = blocks_for(keys)
        try:
            await client.put(keys, run)
            published += 1
        except ChecksumMismatch:
            refused += 1
        run = await client.stage(16)
    going = False
    thread.join()
    say({"refused": refused, "published": published})

asyncio.run(main())
"""


async def test_a_client_that_reuses_its_run_during_the_pull_is_refused(cluster: LocalCluster) -> None:
    """Whatever was published has its sum; the others were refused."""
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        with Helper(SCRIBBLER, cluster.targets) as helper:
            counts = helper.heard(60)
        assert counts["refused"] > 0
        for seed in range(60):
            await client.get(some_keys(16, seed=1000 + seed))  # raises ChecksumMismatch for a block that is not whole


async def test_an_arena_cannot_shrink_and_an_unsealed_one_is_refused(cluster: LocalCluster) -> None:
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        with pytest.raises(PermissionError):
            os.ftruncate(client.staging.arena.memory.fd, 4096)
        peer = client.shards.links[0].peer
        with pytest.raises(PermissionError):
            os.ftruncate(peer.arena.memory.fd, 4096)
        with pytest.raises(PermissionError):
            os.pwrite(peer.arena.memory.fd, b"x", 0)
        with pytest.raises(PermissionError):
            os.pwrite(peer.index.memory.fd, b"x", 0)
        unsealed = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(unsealed, 1 << 20)
            sealed, client.staging.arena.memory.fd = client.staging.arena.memory.fd, unsealed
            with pytest.raises(StagingRejected, match="not sealed"):
                await client._transport.connect(cluster.facts[0], client.shards.links[0]._layout, "t", Deadline(2000))
        finally:
            client.staging.arena.memory.fd = sealed
            os.close(unsealed)


async def test_a_killed_clients_staging_arena_is_let_go_and_its_leases_end(cluster: LocalCluster) -> None:
    code = """
import asyncio, sys
from kvstore.client import Client
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys
async def main():
    client = await Client.connect(sys.argv[1], LAYOUT)
    keys = some_keys(BLOCKS, seed=4)
    await client.put(keys, blocks_for(keys))
    located = await client.lookup(keys, lease_ms=60_000)
    await client.pin(located)
    say(int(located.found.sum()))
    await asyncio.sleep(60)
asyncio.run(main())
""".replace("BLOCKS", str(BLOCKS))
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        before = staging_maps(cluster.pids[0])
        with Helper(code, cluster.targets) as helper:
            assert helper.heard() == BLOCKS
            assert staging_maps(cluster.pids[0]) == before + 1
            helper.process.kill()
            await until(lambda: staging_maps(cluster.pids[0]) == before, "the arena is unmapped")
        keys = some_keys(BLOCKS // 2, seed=5)

        async def room() -> bool:
            try:
                await client.put(keys, blocks_for(keys))
            except Exception:
                return False
            return True

        await until(room, "what was pinned by the dead client can be evicted")


# --- a reader that is stopped -----------------------------------------------------------------------------------------

STOPPED_READER = """
import asyncio, os, signal, sys
import numpy as np
from kvstore.client import Client
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys

async def main():
    client = await Client.connect(sys.argv[1], LAYOUT)
    verify, halfway, leased = sys.argv[2] == "verify", sys.argv[3] == "halfway", sys.argv[4] == "leased"
    keys = some_keys(4, seed=6)
    await client.put(keys, blocks_for(keys))
    what = await client.lookup(keys, lease_ms=200) if leased else keys
    peer = client.shards.links[0].peer
    read = peer.read

    def interrupted(slots, rows, out):
        peer.read = read
        if halfway:
            read(slots[:2], None if rows is None else rows[:2], out)
        say("in the middle")
        os.kill(os.getpid(), signal.SIGSTOP)
        if halfway:
            return 1 + read(slots[2:], np.arange(2, 4) if rows is None else rows[2:], out)
        return read(slots, rows, out)

    peer.read = interrupted
    try:
        blocks = await client.get(what, verify=verify, deadline_ms=2000)
        bytes_of = blocks.data[blocks.found].tobytes() == blocks_for(keys)[blocks.found].tobytes()
        say({"found": blocks.found.tolist(), "right": bytes_of})
    except Exception as error:
        say({"error": type(error).__name__})

asyncio.run(main())
"""


@pytest.mark.parametrize("verify", ["verify", "plain"])
@pytest.mark.parametrize("where", ["before", "halfway"])
@pytest.mark.parametrize("leased", ["leased", "by-key"])
async def test_a_reader_stopped_in_mid_get_never_gets_recycled_bytes(
    cluster: LocalCluster, verify: str, where: str, leased: str
) -> None:
    keys = some_keys(4, seed=6)
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        with Helper(STOPPED_READER, cluster.targets, verify, where, leased) as helper:
            assert helper.heard() == "in the middle"
            await until(lambda: stopped(helper.process.pid), "the reader is stopped")
            await asyncio.sleep(0.3)  # its lease and the grace are over
            await recycle(client, seed=50)
            assert not (await client.get(keys)).found.any()
            helper.process.send_signal(signal.SIGCONT)
            said = helper.heard()
        if said.get("error") != "LeaseExpired":
            # What was copied before the stop is what was asked for; nothing that was copied after it may be taken.
            assert said["right"]
            assert not any(said["found"][2 if where == "halfway" else 0 :])
        await client.remove(keys)


# --- a shard that is stopped or killed --------------------------------------------------------------------------------


async def test_a_leased_place_is_read_while_its_shard_is_stopped(cluster: LocalCluster) -> None:
    keys = some_keys(4, seed=7)
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        await client.put(keys, blocks_for(keys))
        located = await client.lookup(keys, lease_ms=1500)
        cluster.kill(0, signal.SIGSTOP)
        try:
            await until(lambda: stopped(cluster.pids[0]), "the shard is stopped")
            reads = [blocks async for blocks in _read_on(client, located)]
            assert len(reads) > 10
            assert all((data == blocks_for(keys)).all() for data in reads)
            with pytest.raises(LeaseExpired):
                await client.get(located)
            with pytest.raises(ShardUnavailable):
                await client.lookup(keys, lease_ms=100, deadline_ms=100)
        finally:
            cluster.kill(0, signal.SIGCONT)
        assert (await client.lookup(keys, lease_ms=100)).found.all()


async def _read_on(client: Client, located: Locations) -> AsyncIterator[np.ndarray]:
    """What is read there until the lease ends."""
    while True:
        try:
            yield (await client.get(located)).data.copy()
        except LeaseExpired:
            return
        await asyncio.sleep(0.01)


async def test_every_call_to_a_stopped_shard_ends_with_its_deadline(cluster: LocalCluster) -> None:
    keys = some_keys(2, seed=8)
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        session = await client.open_session()
        grown = chain([1, 2, 3])
        tail = tail_keys(grown, int(session))
        leased = await client.lookup(keys, lease_ms=5000)
        await client.put(keys, blocks_for(keys))
        leased = await client.lookup(keys, lease_ms=5000)
        soon = {"deadline_ms": 60}
        cluster.kill(0, signal.SIGSTOP)
        try:
            await until(lambda: stopped(cluster.pids[0]), "the shard is stopped")
            calls: list[tuple[type[Exception], Awaitable[object]]] = [
                (ShardUnavailable, client.lookup(keys, counted=True, **soon)),
                (ShardUnavailable, client.lookup(keys, session=session, **soon)),
                (DeadlineExceeded, client.put(some_keys(2, 9), blocks_for(keys), **soon)),
                (
                    DeadlineExceeded,
                    client.append(session, tail, blocks_for(tail), valid=3, digests=digests_of(grown), **soon),
                ),
                (ShardUnavailable, client.match_tail(session, tail, digests_of(grown), **soon)),
                (DeadlineExceeded, client.remove(keys, **soon)),
                (ShardUnavailable, client.renew(leased, 100, **soon)),
                (ShardUnavailable, client.pin(leased, **soon)),
                (ShardUnavailable, client.open_session(**soon)),
                (ShardUnavailable, client.close_session(int(session), **soon)),
                (ShardUnavailable, Client.connect(cluster.targets, LAYOUT, **soon)),
            ]
            for kind, call in calls:
                async with asyncio.timeout(10):
                    with pytest.raises(kind):
                        await call
            assert client.staging.quarantined == 3
        finally:
            cluster.kill(0, signal.SIGCONT)
        await until(lambda: client.staging.quarantined == 0, "the shard acknowledged the cancels")
        assert client.staging.free == len(client.staging)
        session.release()


async def test_a_cancelled_put_keeps_its_run_until_the_shard_lets_go(cluster: LocalCluster) -> None:
    keys = some_keys(3, seed=10)
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        cluster.kill(0, signal.SIGSTOP)
        try:
            put = asyncio.create_task(client.put(keys, blocks_for(keys)))
            await asyncio.sleep(0.1)
            put.cancel()
            with pytest.raises(asyncio.CancelledError):
                await put
            assert client.staging.quarantined == 3
        finally:
            cluster.kill(0, signal.SIGCONT)
        await until(lambda: client.staging.quarantined == 0, "the shard acknowledged the cancel")
        blocks = await client.get(keys)  # done or not done, never half
        assert blocks.found.all() or not blocks.found.any()


async def test_a_killed_shard_is_unavailable_at_once_and_comes_back_empty() -> None:
    keys = some_keys(4, seed=11)
    with LocalCluster(2, LAYOUT, BLOCKS, placement="uniform") as cluster:
        async with await Client.connect(cluster.targets, LAYOUT, staging_blocks=8) as client:
            keys = keys[client.shards.home(keys) == client.shards.home(keys)[0]]
            victim = int(client.shards.home(keys)[0])
            await client.put(keys, blocks_for(keys))
            located = await client.lookup(keys, lease_ms=30_000)
            cluster.kill(victim, signal.SIGSTOP)
            waiting = [
                asyncio.create_task(client.lookup(keys, counted=True, deadline_ms=20_000)),
                asyncio.create_task(client.put(some_keys(64, 12), blocks_for(some_keys(64, 12)), deadline_ms=20_000)),
            ]
            await asyncio.sleep(0.2)
            cluster.kill(victim)
            for call in waiting:
                async with asyncio.timeout(10):
                    with pytest.raises(ShardUnavailable):
                        await call
            for what in (keys, located, await _one(located)):
                async with asyncio.timeout(10):
                    with pytest.raises(ShardUnavailable):
                        await client.get(what, client.buffer(len(what)), deadline_ms=20_000)
            await until(lambda: client.staging.quarantined == 0, "a dead shard reads nothing any more")
            cluster.restart(victim)
            assert not (await client.get(keys)).found.any()
            await client.put(keys, blocks_for(keys))
            assert ((await client.get(keys)).data == blocks_for(keys)).all()


async def _one(located: Locations) -> Locations:
    from dataclasses import replace

    columns = ("keys", "shard", "slot", "generation", "clock", "valid", "miss", "until_ms")
    return replace(located, **{name: getattr(located, name)[:1] for name in columns})


async def test_a_get_of_a_block_overwritten_all_the_time_is_whole(cluster: LocalCluster) -> None:
    """Tails of one session, rewritten by another process while they are read."""
    writer = """
import asyncio, sys
from kvstore.client import Client
from tests.kvstore.process_rig import LAYOUT, blocks_for, chain, digests_of, tail_keys
async def main():
    client = await Client.connect(sys.argv[1], LAYOUT)
    session = await client.open_session(number=4711)
    say("ready")
    for turn in range(40):
        grown, expected = chain([]), 0
        for token in range(15):
            grown.extend([token + turn * 100])
            keys = tail_keys(chain([]), 4711)
            done = await client.append(session, keys, blocks_for(keys, grown_to := token + 1), valid=token + 1,
                                       digests=digests_of(grown), expected=expected)
            expected = done.clock
        await client.remove(keys)
    say("done")
asyncio.run(main())
"""
    keys = tail_keys(chain([]), 4711)
    versions = [blocks_for(keys, version).tobytes() for version in range(17)]
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        with Helper(writer, cluster.targets) as helper:
            assert helper.heard() == "ready"
            seen, stop = set(), False
            while not stop:
                for verify in (True, False):
                    blocks = await client.get(keys, verify=verify, deadline_ms=500)
                    if blocks.found[0]:
                        assert blocks.data.tobytes() == versions[int(blocks.valid[0])]
                        seen.add(int(blocks.valid[0]))
                stop = helper.process.poll() is not None
                await asyncio.sleep(0)
            assert helper.heard() == "done"
    assert len(seen) > 5
