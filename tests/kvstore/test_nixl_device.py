"""Pools on a device that are reached by NIXL, too: the mover holds the memory, and its end is the shard's.

The device is `shm`, and all else is real: processes, agents, lanes. What needs a GPU is in `test_transport_device_gpu`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore.bench.far import LANES
from kvstore.bench.far import only as lane
from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.deadline import Deadline
from kvstore.errors import BadRequest, DeadlineExceeded, ShardUnavailable, StoreError
from kvstore.tally import Tally
from kvstore.transport.device.landing import Landing
from kvstore.transport.device.peer import DevicePeer
from kvstore.transport.nixl.client import Stream
from kvstore.transport.nixl.hello import Hello
from kvstore.transport.nixl.peer import NixlPeer
from tests.kvstore.device_rig import compiled, stubbed
from tests.kvstore.nixl_rig import NEEDS_NIXL, page_of, sample, state_of, stopped, until
from tests.kvstore.process_rig import LAYOUT, ROOT, Helper, blocks_for, chain, digests_of, some_keys, tail_keys

pytestmark = NEEDS_NIXL
BLOCKS = 256
SLOTS = 48


@pytest.fixture(scope="module", params=list(LANES))
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Two shards; agents of this process take the same lane."""
    with lane(request.param), LocalCluster(2, LAYOUT, BLOCKS, device="shm", nixl=True) as running:
        yield running


@pytest.fixture
def tcp() -> Iterator[None]:
    with lane("tcp"):
        yield


@pytest.fixture
def mortal(tcp: None) -> Iterator[LocalCluster]:
    with LocalCluster(1, LAYOUT, BLOCKS, device="shm", nixl=True) as running:
        yield running


async def far(cluster: LocalCluster, **options: Any) -> Client:
    return await Client.connect(cluster.targets, LAYOUT, transport="nixl", **{"deadline_ms": 30_000, **options})


async def near(cluster: LocalCluster, **options: Any) -> Client:
    return await Client.connect(cluster.file, LAYOUT, **{"deadline_ms": 30_000, **options})


def holder_of(cluster: LocalCluster) -> int:
    return int(cluster.facts[0]["pool_pid"])


# --- blocks ---------------------------------------------------------------------------------------------------------


async def test_what_was_put_comes_back_by_either_way(cluster: LocalCluster) -> None:
    keys = some_keys(90, seed=1)
    data = blocks_for(keys)
    async with await far(cluster) as distant, await near(cluster) as mapped:
        assert {type(link.peer) for link in distant.shards.links} == {NixlPeer}
        assert {type(link.peer) for link in mapped.shards.links} == {DevicePeer}
        await distant.put(keys[:50], data[:50])
        await mapped.put(keys[50:80], data[50:80])
        there = np.arange(90) < 80
        for client in (distant, mapped):
            for verify in (True, False):
                blocks = await client.get(keys, verify=verify)
                assert (blocks.found == there).all()
                assert (blocks.data[there] == data[there]).all()
                straight = await client.get(keys[:80], client.buffer(80), verify=verify)
                assert (straight.data == data[:80]).all()
        assert (await mapped.remove(keys[:3])).all()
        assert not (await distant.get(keys[:3])).found.any()


async def test_runs_scattered_places_and_single_blocks(cluster: LocalCluster) -> None:
    keys = some_keys(64, seed=2)
    data = blocks_for(keys)
    async with await far(cluster) as client:
        await client.put(keys, data)
        at = await client.lookup(keys, lease_ms=20_000)
        rng = np.random.default_rng(3)
        for rows in (np.arange(64), rng.permutation(64), np.arange(0, 64, 2), np.array([5]), np.arange(63, -1, -1)):
            for out in (client.buffer(len(rows)), None):
                for verify in (True, False):
                    found = await client.get(at.rows(rows), out, verify=verify)
                    assert (found.data == data[rows]).all()
        await client.report()
        urls = cluster.metrics_urls
        before = sum([await sample(url, "kv_read_descriptors_total") for url in urls])
        await client.get(at, client.buffer(64))
        await client.report()
        told = sum([await sample(url, "kv_read_descriptors_total") for url in urls]) - before
        assert told == 2 * 64, "a header and its data are a descriptor each"


async def test_tails_grow(cluster: LocalCluster) -> None:
    async with await far(cluster) as client, await client.open_session() as session:
        first, second = chain(list(range(20))), chain(list(range(21)))
        keys = tail_keys(first, session.number)
        done = await client.append(session, keys, blocks_for(keys, 1), valid=4, digests=digests_of(first))
        agree, at = await client.match_tail(session, keys, digests_of(first), lease_ms=5_000)
        assert agree == 4
        assert ((await client.get(at)).data == blocks_for(keys, 1)).all()
        newer = blocks_for(keys, 2)
        await client.append(session, keys, newer, valid=5, digests=digests_of(second), expected=done.clock)
        found = await client.get(keys, min_valid=5)
        assert (found.data == newer).all()
        assert found.valid.tolist() == [5]


@pytest.mark.parametrize("way", ["near", "far", "far, landing"])
@pytest.mark.parametrize("verify", [True, False])
async def test_blocks_go_on_to_the_clients_device(
    cluster: LocalCluster, way: str, verify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the way of a GPU, with registered host memory in the place of the card's, less of it than a get needs."""
    keys = some_keys(30, seed=40 + len(way) + verify)
    connect = near if way == "near" else far
    if way == "far, landing":

        def ready(self: Landing, mine: Any, slot_bytes: int) -> bool:
            if self._room is None:
                self._room = mine.buffer(6)
            return self._room is not None

        monkeypatch.setattr(Landing, "ready", ready)
    async with await connect(cluster, device="shm") as client:
        await client.put(keys[:25], blocks_for(keys[:25]))
        room = client.device_rows(64)
        room.upload(np.full((64, LAYOUT.block_bytes), 7, np.uint8))
        places = np.random.default_rng(4).permutation(64)[:30]
        found = await client.get_on_device(keys, room, places=places, verify=verify)
        assert (found.found == (np.arange(30) < 25)).all()
        now = room.download()
        assert (now[places[:25]] == blocks_for(keys[:25])).all()
        assert (np.delete(now, places[:25], axis=0) == 7).all()


async def test_a_shard_pulls_out_of_a_clients_device_into_the_movers(cluster: LocalCluster) -> None:
    async with await near(cluster, device="shm") as mapped, await far(cluster) as distant:
        keys = some_keys(40, seed=60)
        keys = keys[mapped.shards.home(keys) == 0]
        run = await mapped.stage_on_device(len(keys))
        run.rows.upload(blocks_for(keys))  # type: ignore[attr-defined]
        await mapped.put(keys, run)
        assert ((await distant.get(keys)).data == blocks_for(keys)).all()


# --- races ----------------------------------------------------------------------------------------------------------

_WRITER = """
import asyncio, sys
from kvstore.client import Client
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys
async def main():
    async with await Client.connect(sys.argv[1], LAYOUT) as client:
        say("in")
        for turn in range(100_000):
            keys = some_keys(16, 1000 + turn % 8)
            try:
                await client.put(keys, blocks_for(keys))
            except Exception as error:
                if type(error).__name__ != "PoolExhausted":
                    raise
asyncio.run(main())
"""


@pytest.mark.parametrize(("by", "verify"), [("tcp", False), ("shm", True), ("shm", False)])
async def test_recycled_slots_are_misses_never_other_bytes(
    by: str, verify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool of three puts, written without end, read at places that nothing holds."""
    sets = [some_keys(16, 1000 + turn) for turn in range(8)]
    raced: Counter[str] = Counter()
    monkeypatch.setattr(Tally, "bad", lambda self, result, blocks: raced.update({result: blocks}))
    with (
        lane(by),
        LocalCluster(1, LAYOUT, SLOTS, device="shm", nixl=True) as small,
        Helper(_WRITER, str(small.file)) as writer,
    ):
        assert writer.heard() == "in"
        async with await far(small) as client:
            good, lost, turn = 0, 0, 0
            end = time.monotonic() + 20
            while not (good > 200 and lost and raced["recycled"] + raced["torn"] > 10) and time.monotonic() < end:
                turn += 1
                keys = sets[turn % 8]
                at = await client.lookup(keys, touch=False)
                await asyncio.sleep(0.002 * (turn % 5))  # time for the writer to come by before the read, or in it
                found = await client.get(at, verify=verify, deadline_ms=2_000)
                assert (found.data[found.found] == blocks_for(keys)[found.found]).all()
                good, lost = good + int(found.found.sum()), lost + int((~found.found).sum())
        assert good
        assert lost
        assert raced["recycled"] + raced["torn"]


@pytest.mark.parametrize("verify", [True, False])
async def test_the_header_of_one_block_never_vouches_for_the_data_of_another(
    mortal: LocalCluster, verify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst that can come between the two requests of a read: every slot is another's by the time of the second."""
    keys, others = some_keys(BLOCKS, seed=70), some_keys(BLOCKS, seed=71)
    async with await far(mortal) as distant, await near(mortal) as mapped:
        await mapped.put(keys, blocks_for(keys))
        at = await distant.lookup(keys)
        real, met = NixlPeer.fetch, []

        async def overtaken(self: NixlPeer, slots: Any, rows: Any, out: Any, deadline: Deadline) -> int:
            done = await real(self, slots, rows, out, deadline)
            if not met:
                heads = out[:, :128].copy()
                await mapped.put(others, blocks_for(others))
                met.append(await real(self, slots, rows, out, deadline))
                out[:, :128] = heads
            return done

        monkeypatch.setattr(NixlPeer, "fetch", overtaken)
        found = await distant.get(at, verify=verify)
        assert met
        assert not found.found.any()
        monkeypatch.undo()
        assert ((await distant.get(others)).data == blocks_for(others)).all()


# --- ends -----------------------------------------------------------------------------------------------------------


class Load:
    """Gets and puts without end, until each has met an error; what was acknowledged."""

    def __init__(self, keys: Any) -> None:
        self.keys = keys
        self.gets = 0
        self.put: list[int] = []
        self.met: dict[str, StoreError] = {}

    async def read(self, client: Client, what: Any, verify: bool, name: str) -> None:
        with suppress(asyncio.CancelledError):
            while True:
                try:
                    found = await client.get(what, verify=verify, deadline_ms=3_000)
                except StoreError as error:
                    self.met[name] = error
                    return
                assert (found.data[found.found] == blocks_for(self.keys)[found.found]).all(), name
                assert found.found.all(), "a lost pool is an error, no miss"
                self.gets += 1
                await asyncio.sleep(0)

    async def write(self, client: Client, first: int, durability: int, name: str) -> None:
        for seed in range(first, first + 1000):
            try:
                keys = some_keys(2, seed)
                await client.put(keys, blocks_for(keys), deadline_ms=3_000, durability=durability)
            except StoreError as error:
                self.met[name] = error
                return
            self.put.append(seed)


async def test_a_killed_mover_ends_the_shard_and_no_byte_is_wrong(tcp: None, tmp_path: Path) -> None:
    keys = some_keys(64, seed=80)
    options: dict[str, Any] = {"durability": "log+sync", "log_dir": tmp_path / "log"}
    with LocalCluster(1, LAYOUT, 4 * BLOCKS, device="shm", nixl=True, **options) as logged:
        async with await far(logged) as distant, await near(logged) as mapped:
            await mapped.put(keys, blocks_for(keys), durability=2)
            load, work = Load(keys), []
            for client, name in ((distant, "far"), (mapped, "near")):
                at = await client.lookup(keys, lease_ms=60_000)
                for verify in (True, False):
                    work.append(load.read(client, keys, verify, f"{name} {verify}"))
                    work.append(load.read(client, at, verify, f"{name} at {verify}"))
                work.append(load.write(client, 1_000 if name == "far" else 5_000, 2, f"{name} puts"))
            tasks = [asyncio.create_task(each) for each in work]
            await until(lambda: load.gets > 20 and len(load.put) > 4, "all are at it")
            os.kill(holder_of(logged), signal.SIGKILL)
            assert await asyncio.to_thread(logged.processes[0].wait, 20) == 1
            await asyncio.wait_for(asyncio.gather(*tasks), 20)
            assert len(load.met) == len(tasks)
            kinds = {type(error) for error in load.met.values()}
            assert kinds <= {ShardUnavailable, DeadlineExceeded}, load.met
            said = logged.log(0)
            assert "the process that held its pool on shm (its mover) has ended, and the pool with it" in said
            assert said.count("\n") == 1, said
            await asyncio.to_thread(logged.restart, 0)
            for client in (distant, mapped):
                assert ((await client.get(keys)).data == blocks_for(keys)).all(), "what was durable is back"
                for seed in load.put:
                    found = await client.get(some_keys(2, seed))
                    assert (found.data == blocks_for(some_keys(2, seed))).all()
                more = some_keys(8, 90)
                await client.put(more, blocks_for(more))
                await until(lambda client=client: client.staging.quarantined == 0, "all that was put is settled")


@pytest.mark.parametrize("verify", [True, False])
async def test_nobody_reads_the_pool_of_a_mover_that_has_ended(mortal: LocalCluster, verify: bool) -> None:
    """Not even while the shard, stopped, can tell nobody: what was mapped is still there, and is nobody's pool."""
    keys = some_keys(16, seed=91)
    async with (
        await far(mortal) as distant,
        await near(mortal) as mapped,
        await near(mortal, device="shm") as owner,
    ):
        await mapped.put(keys, blocks_for(keys))
        places = [await client.lookup(keys, lease_ms=60_000) for client in (distant, mapped, owner)]
        mortal.kill(0, signal.SIGSTOP)
        await until(lambda: stopped(mortal.pids[0]), "the shard is frozen")
        assert (await mapped.get(places[1], verify=verify)).found.all(), "leased places of a stopped shard are read"
        holder = holder_of(mortal)
        os.kill(holder, signal.SIGKILL)
        await until(lambda: state_of(holder) in ("", "Z"), "the mover has ended")
        try:
            room = owner.device_rows(16)
            room.upload(np.zeros((16, LAYOUT.block_bytes), np.uint8))
            for what in (
                lambda: distant.get(places[0], verify=verify, deadline_ms=400),
                lambda: mapped.get(places[1], verify=verify, deadline_ms=400),
                lambda: mapped.get(keys, verify=verify, deadline_ms=400),
                lambda: owner.get_on_device(places[2], room, verify=verify, deadline_ms=400),
            ):
                with pytest.raises(ShardUnavailable):
                    await what()
            assert not room.download().any()
        finally:
            mortal.kill(0, signal.SIGCONT)
        assert await asyncio.to_thread(mortal.processes[0].wait, 20) == 1


async def test_a_killed_shard_takes_its_pool_along_and_comes_back(mortal: LocalCluster) -> None:
    keys = some_keys(16, seed=92)
    async with await far(mortal) as distant, await near(mortal) as mapped:
        await distant.put(keys, blocks_for(keys))
        holder = holder_of(mortal)
        await asyncio.to_thread(mortal.kill, 0)
        for client in (distant, mapped):
            with pytest.raises(ShardUnavailable):
                await client.get(keys, deadline_ms=500)
        await until(lambda: state_of(holder) in ("", "Z"), "the mover ends with its shard")
        await asyncio.to_thread(mortal.restart, 0)
        for client in (distant, mapped):
            assert not (await client.get(keys)).found.any()
        await mapped.put(keys, blocks_for(keys))
        for client in (distant, mapped):
            assert ((await client.get(keys)).data == blocks_for(keys)).all()


async def test_a_shard_that_is_told_to_ends_cleanly_with_clients_inside(mortal: LocalCluster) -> None:
    keys = some_keys(4, seed=93)
    async with await far(mortal) as distant, await near(mortal) as mapped:
        await distant.put(keys, blocks_for(keys))
        holder = holder_of(mortal)
        await asyncio.to_thread(mortal.kill, 0, signal.SIGTERM)
        assert mortal.processes[0].returncode == 0
        assert mortal.log(0) == ""
        assert state_of(holder) == ""
        for client in (distant, mapped):
            with pytest.raises(ShardUnavailable):
                await client.get(keys, deadline_ms=500)


# --- words ----------------------------------------------------------------------------------------------------------


async def test_facts_and_page_say_what_is_where(cluster: LocalCluster) -> None:
    facts = cluster.facts[0]
    assert (facts["pool_on"], facts["nixl"]) == ("shm", True)
    assert facts["pool_pid"] not in (facts["pid"], 0)
    assert b"nixl.mover" in Path(f"/proc/{facts['pool_pid']}/cmdline").read_bytes()
    assert "device" not in facts
    async with await far(cluster) as client:
        told = client.shards.links[0].facts["nixl"]
        assert set(told["data"]) == {"base", "gpu"}
        assert told["data"]["gpu"] is None
        keys = some_keys(8, seed=94)
        await client.put(keys, blocks_for(keys))
    page = await page_of(cluster.metrics_urls[0])
    lines = [line for line in page.splitlines() if line.startswith("kv_transport_info{")]
    assert any('transport="mapped"' in line and 'device="shm"' in line for line in lines)
    assert any('transport="nixl"' in line for line in lines)


async def test_a_pool_in_host_memory_is_the_shards_own() -> None:
    with LocalCluster(1, LAYOUT, 16, nixl=True) as plain:
        assert plain.facts[0]["pool_pid"] == plain.facts[0]["pid"]
        async with await far(plain) as client:
            assert client.shards.links[0].facts["nixl"]["data"] is None


async def test_a_client_of_the_former_protocol_is_told_so_in_one_line(cluster: LocalCluster) -> None:
    hello = Hello(LAYOUT, "old", os.getpid(), "staging-" + "0" * 32, b"m", 4096, 4)
    said = json.loads(hello.pack()) | {"protocol": 1}
    stream = Stream(cluster.addresses[0])
    try:
        with pytest.raises(BadRequest, match="the client speaks nixl protocol 1, this shard 2"):
            await stream.open(json.dumps(said).encode(), Deadline(10_000))
    finally:
        await stream.close()


def serve(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    where = ["--listen", "127.0.0.1:0", "--run-dir", str(folder / "run"), "--blocks", "8", "--nixl"]
    command = [sys.executable, "-m", "kvstore.cli", "serve", *where, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT)


def test_a_card_that_nixl_cannot_register_is_refused_in_one_line(tmp_path: Path) -> None:
    """NIXL itself refuses: there is no GPU here, only a runtime that says there is."""
    with stubbed(compiled(tmp_path), tmp_path / "stub") as stub:
        done = serve(["--device", "cuda:0"], tmp_path)
        assert done.returncode == 2
        assert "NIXL cannot register" in done.stderr
        assert "cuda:0" in done.stderr
        assert done.stderr.count("\n") == 1
        assert stub.counts()["cudaMalloc"] == 1
        assert not stub.counts()["cudaIpcOpenMemHandle"]
        done = serve(["--device", "cuda:7"], tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "no cuda:7 here" in done.stderr


def test_more_memory_than_there_is_is_refused_in_one_line(tmp_path: Path) -> None:
    done = serve(["--device", "shm", "--blocks", str(1 << 50)], tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
