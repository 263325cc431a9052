"""Pools on a device, read and written by other processes: the same blocks, the same misses, never wrong bytes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

from kvstore.arena import Arena, Memory
from kvstore.checks import Verdict
from kvstore.client import Client, SyncClient
from kvstore.cluster import LocalCluster
from kvstore.errors import BadRequest, ChecksumMismatch, ShardUnavailable, StagingRejected
from kvstore.header import HEADER_BYTES, sums
from kvstore.index import Index
from kvstore.layout import Layout
from kvstore.pool import Pool
from kvstore.reader import Part, read
from kvstore.transport.device.arena import DeviceArena
from kvstore.transport.device.holder import PAGE, Holder
from kvstore.transport.device.memory import Move, device_named
from kvstore.transport.device.moves import host_moves
from kvstore.transport.device.peer import DevicePeer
from kvstore.transport.device.rows import DeviceRows
from tests.kvstore.device_rig import compiled, stubbed
from tests.kvstore.process_rig import LAYOUT, ROOT, Helper, blocks_for, chain, digests_of, some_keys, tail_keys

BLOCKS = 256
SLOTS = 48


@pytest.fixture(scope="module", params=["shm", "cuda:0"])
def device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("device")
    with nullcontext() if request.param == "shm" else stubbed(compiled(folder), folder / "stub"):
        yield request.param


@pytest.fixture(scope="module")
def cluster(device: str) -> Iterator[LocalCluster]:
    with LocalCluster(2, LAYOUT, BLOCKS, device=device) as running:
        yield running


async def test_what_is_put_is_found_and_read(cluster: LocalCluster) -> None:
    keys = some_keys(60, seed=1)
    there = np.arange(len(keys)) % 3 != 1
    async with await Client.connect(cluster.file, LAYOUT) as client:
        published = await client.put(keys[there], blocks_for(keys[there]))
        assert len(np.unique(client.shards.home(keys))) == 2
        for verify in (True, False):
            blocks = await client.get(keys, verify=verify)
            assert (blocks.found == there).all()
            assert (blocks.data[there] == blocks_for(keys[there])).all()
            assert (blocks.clock[there] == published.clock).all()
            known = await client.get(await client.lookup(keys, lease_ms=2_000), client.buffer(60), verify=verify)
            assert (known.found == there).all()
            assert (known.data[there] == blocks_for(keys[there])).all()
        one = await client.get(await client.lookup(keys[:1]), client.buffer(1))
        assert (one.data == blocks_for(keys[:1])).all()


@pytest.mark.parametrize("verify", [True, False])
async def test_a_get_onto_the_device_fills_the_places_that_it_was_told(
    cluster: LocalCluster, device: str, verify: bool
) -> None:
    keys = some_keys(40, seed=2)
    async with await Client.connect(cluster.file, LAYOUT, device=device) as client:
        await client.put(keys[:30], blocks_for(keys[:30]))
        room = client.device_rows(64)
        room.upload(np.full((64, LAYOUT.block_bytes), 7, np.uint8))
        places = np.random.default_rng(3).permutation(64)[:40]
        blocks = await client.get_on_device(keys, room, places=places, verify=verify)
        assert (blocks.found == (np.arange(40) < 30)).all()
        assert (blocks.headers["key"][:30] == keys[:30]).all()
        assert blocks.valid.tolist() == [16] * 30 + [0] * 10
        now = room.download()
        assert (now[places[:30]] == blocks_for(keys[:30])).all()
        assert (np.delete(now, places[:30], axis=0) == 7).all()
        located = await client.lookup(keys[:30], lease_ms=2_000)
        await client.get_on_device(located, room, verify=verify)
        assert (room.download()[:30] == blocks_for(keys[:30])).all()
        with pytest.raises(BadRequest, match="block 64 of 64"):
            await client.get_on_device(keys[:1], room, places=np.array([64]))
        with pytest.raises(BadRequest, match="two rows cannot become one block"):
            await client.get_on_device(keys[:4], room, places=np.array([1, 0, 2, 0]))
        for many in (1 << 50, 1 << 62):
            with pytest.raises(BadRequest):
                client.device_rows(many)
    with pytest.raises(BadRequest, match="no device ''"):
        await Client.connect(cluster.file, LAYOUT, device="")


async def test_a_pool_in_host_memory_is_read_onto_the_device_too(device: str) -> None:
    keys = some_keys(20, seed=3)
    async with (
        LocalCluster(2, LAYOUT, BLOCKS, own={0: {"device": device}}) as mixed,
        await Client.connect(mixed.file, LAYOUT, device=device) as client,
    ):
        await client.put(keys, blocks_for(keys))
        room = client.device_rows(20)
        for verify in (True, False):
            room.upload(np.zeros((20, LAYOUT.block_bytes), np.uint8))
            assert (await client.get_on_device(keys, room, verify=verify)).found.all()
            assert (room.download() == blocks_for(keys)).all()
        run = await client.stage_on_device(1)
        run.rows.upload(blocks_for(keys[:1]))
        host_key = next(key for seed in range(9, 99) if client.shards.home(key := some_keys(1, seed))[0] == 1)
        with pytest.raises(StagingRejected, match="outside"):
            await client.put(host_key, run)


def test_plain_code_has_the_same(cluster: LocalCluster, device: str) -> None:
    keys = some_keys(9, seed=44)
    with SyncClient(cluster.file, LAYOUT, device=device) as client:
        home = client.client.shards.home(keys)
        assert len(np.unique(home)) == 2
        for shard in np.unique(home):  # as the guide has it
            mine = np.flatnonzero(home == shard)
            run = client.stage_on_device(len(mine))
            run.rows.upload(blocks_for(keys[mine]))
            assert not client.put(keys[mine], run).existed.any()
        room = client.device_rows(len(keys))
        assert client.get_on_device(keys, room).found.all()
        assert (room.download() == blocks_for(keys)).all()


async def test_shards_pull_out_of_the_clients_device(cluster: LocalCluster, device: str) -> None:
    async with await Client.connect(cluster.file, LAYOUT, device=device) as client:
        keys = some_keys(24, seed=4)
        keys = keys[client.shards.home(keys) == 0]
        run = await client.stage_on_device(len(keys))
        run.rows.upload(blocks_for(keys))
        published = await client.put(keys, run)
        assert not published.existed.any()
        assert ((await client.get(keys)).data == blocks_for(keys)).all()
        with pytest.raises(BadRequest, match="put or given back"):
            await client.put(keys, run)
        again = await client.stage_on_device(2)
        client.unstage(again)
        assert client.side.staging.free == len(client.side.staging)


async def test_what_changed_while_it_was_pulled_is_refused(
    cluster: LocalCluster, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvstore import writes

    async with await Client.connect(cluster.file, LAYOUT, device=device) as client:
        keys = some_keys(1, seed=5)
        run = await client.stage_on_device(1)
        run.rows.upload(blocks_for(keys))

        def summed_before(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            found = sums(data)
            run.rows.upload(blocks_for(keys, version=1))
            return found

        monkeypatch.setattr(writes, "sums", summed_before)
        with pytest.raises(ChecksumMismatch):
            await client.put(keys, run)
        assert not (await client.lookup(keys)).found.any()


async def test_tails_and_full_blocks_come_back_from_the_log(device: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"durability": "log+sync", "log_dir": tmp_path / "log"}
    keys = some_keys(12, seed=6)
    with LocalCluster(1, LAYOUT, BLOCKS, device=device, **options) as logged:
        async with await Client.connect(logged.file, LAYOUT) as client:
            await client.put(keys, blocks_for(keys), durability=2)
            session = await client.open_session(renew=False)
            mine = chain([1, 2, 3])
            tails = tail_keys(mine, session.number)
            first = await client.append(
                session, tails, blocks_for(tails), valid=3, digests=digests_of(mine), durability=2
            )
            more = chain([1, 2, 3, 4])
            grown = blocks_for(tails)
            await client.append(
                session, tails, grown, valid=4, digests=digests_of(more), expected=first.clock, durability=2
            )
            logged.kill(0)
            logged.restart(0)
            found = await client.get(keys, deadline_ms=20_000)
            assert found.found.all()
            assert (found.data == blocks_for(keys)).all()
            tail = await client.get(tails)
            per_token = LAYOUT.head_dim * LAYOUT.item_bytes
            k = tail.data.reshape(2, LAYOUT.block_tokens, per_token)
            assert tail.valid.tolist() == [4]
            assert (k[:, :4] == grown.reshape(2, LAYOUT.block_tokens, per_token)[:, :4]).all()


async def test_a_killed_shard_is_unavailable_and_comes_back(device: str) -> None:
    keys = some_keys(8, seed=7)
    with LocalCluster(1, LAYOUT, BLOCKS, device=device) as mortal:
        async with await Client.connect(mortal.file, LAYOUT, device=device) as client:
            await client.put(keys, blocks_for(keys))
            located = await client.lookup(keys, lease_ms=30_000)
            mortal.kill(0)
            with pytest.raises(ShardUnavailable):
                await client.get(located, client.buffer(8), deadline_ms=300)
            with pytest.raises(ShardUnavailable):
                await client.get_on_device(located, client.device_rows(8), deadline_ms=300)
            mortal.restart(0)
            assert not (await client.get(keys, deadline_ms=20_000)).found.any()
            await client.put(keys, blocks_for(keys))
            assert (await client.get_on_device(keys, client.device_rows(8))).found.all()


async def test_leased_places_are_read_from_a_stopped_shard(cluster: LocalCluster, device: str) -> None:
    keys = some_keys(8, seed=8)
    async with await Client.connect(cluster.file, LAYOUT, device=device) as client:
        await client.put(keys, blocks_for(keys))
        located = await client.lookup(keys, lease_ms=30_000)
        for number in (0, 1):
            cluster.kill(number, signal.SIGSTOP)
        try:
            room = client.device_rows(8)
            assert (await client.get_on_device(located, room)).found.all()
            assert (room.download() == blocks_for(keys)).all()
        finally:
            for number in (0, 1):
                cluster.kill(number, signal.SIGCONT)


_GUEST = """
import asyncio, sys
from kvstore.client import Client, SyncClient
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys
async def main():
    client = await Client.connect(sys.argv[1], LAYOUT, device=sys.argv[2])
    keys = some_keys(4, 900)
    await client.put(keys, blocks_for(keys))
    say("in")
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_a_killed_client_costs_the_shard_nothing(cluster: LocalCluster, device: str) -> None:
    keys = some_keys(4, 900)
    with Helper(_GUEST, cluster.targets, device) as guest:
        assert guest.heard() == "in"
        guest.process.kill()
    async with await Client.connect(cluster.file, LAYOUT, device=device) as client:
        assert (await client.get(keys)).found.all()
        more = some_keys(30, 901)
        await client.put(more, blocks_for(more))
        assert (await client.get_on_device(more, client.device_rows(30))).found.all()


_WRITER = """
import asyncio, sys
import numpy as np
from kvstore.client import Client, SyncClient
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys
async def main():
    async with await Client.connect(sys.argv[1], LAYOUT) as client:
        say("in")
        for turn in range(100_000):
            keys = some_keys(16, 1000 + turn % 40)
            await client.put(keys, blocks_for(keys))
asyncio.run(main())
"""


@pytest.mark.parametrize("verify", [True, False])
async def test_recycled_slots_are_misses_never_other_bytes(device: str, verify: bool) -> None:
    """A pool of three puts, written without end: what a get says is there is what its key says it should be."""
    sets = [some_keys(16, 1000 + turn) for turn in range(40)]
    with LocalCluster(1, LAYOUT, SLOTS, device=device) as small, Helper(_WRITER, small.targets) as writer:
        assert writer.heard() == "in"
        async with await Client.connect(small.file, LAYOUT, device=device) as client:
            room, good, lost = client.device_rows(16), 0, 0
            for turn in range(240):
                keys = sets[turn % 40]
                if turn % 2:
                    found = (await client.get_on_device(keys, room, verify=verify, deadline_ms=20)).found
                    data = room.download()
                else:
                    blocks = await client.get(keys, verify=verify, deadline_ms=20)
                    found, data = blocks.found, blocks.data
                assert (data[found] == blocks_for(keys)[found]).all()
                good, lost = good + int(found.sum()), lost + int((~found).sum())
        assert good
        assert lost


def test_a_client_that_knows_no_devices_is_told_so(cluster: LocalCluster) -> None:
    said = _hello(cluster, {"protocol": 1, "layout": cluster.facts[0]["layout"], "name": "old"})
    assert "does not know what that is" in said["text"]


@pytest.mark.parametrize(
    "lends",
    [
        {"slots": 3},
        {"kind": "shm", "size": 4096, "slots": 3},
        {"kind": "cuda", "handle": "00", "size": 8192, "slots": 1},
        {"kind": "cuda", "handle": "ff" * 64, "size": 8192, "slots": 1},
        {"kind": "cuda", "handle": 3, "size": "x", "slots": 1},
        {"kind": "nothing", "size": 1 << 40, "slots": 1 << 20},
        {"slots": -1, "size": 10},
        [],
        "x",
    ],
)
def test_memory_that_cannot_be_opened_is_refused_in_words(cluster: LocalCluster, lends: Any) -> None:
    said = _hello(cluster, {"protocol": 1, "layout": cluster.facts[0]["layout"], "name": "odd", "lends": lends})
    assert said["error"] in (StagingRejected.code, BadRequest.code)
    assert "\n" not in said["text"]


def _hello(cluster: LocalCluster, hello: dict[str, Any]) -> dict[str, Any]:
    staging = Arena.create("t", 4, LAYOUT.slot_bytes, LAYOUT.block_bytes, pool=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(10)
        connection.connect(str(cluster.facts[0]["door"]))
        socket.send_fds(connection, [json.dumps(hello).encode()], [staging.memory.fd])
        data, fds, _, _ = socket.recv_fds(connection, 65_536, 8)
    for fd in fds:
        os.close(fd)
    return json.loads(data)


def test_how_the_memory_is_opened_is_told_at_the_door_only(cluster: LocalCluster, device: str) -> None:
    assert "device" not in cluster.facts[0]
    assert cluster.facts[0]["pool_on"] == device


def test_the_page_names_lane_and_device(cluster: LocalCluster, device: str) -> None:
    line = next(line for line in _page(cluster, 0) if line.startswith("kv_transport_info{"))
    lane = "cuda_ipc" if device.startswith("cuda") else "memfd"
    assert 'transport="mapped"' in line
    assert f'lane="{lane}"' in line
    assert f'device="{device}"' in line


async def test_how_fast_a_pool_is_read_is_measured_once_and_told(
    cluster: LocalCluster, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvstore.transport import probe

    timed: list[str] = []
    real = probe._timed

    def counted(lane: str, *rest: Any) -> Any:
        timed.append(lane)
        return real(lane, *rest)

    monkeypatch.setattr(probe, "_timed", counted)
    lanes: dict[str | None, str] = {None: "cuda_host" if device.startswith("cuda") else "memfd"}
    lanes[device] = "cuda_ipc" if device.startswith("cuda") else "memfd"
    for mine, lane in lanes.items():
        timed.clear()
        async with await Client.connect(cluster.file, LAYOUT, device=mine, name=f"reader-{mine or 'host'}") as client:
            assert timed == [lane, lane], "one shard, one copy to time"
            ranked = client.by_bandwidth()
            rates = [bandwidth.bytes_per_second for _, bandwidth in ranked]
            assert sorted(number for number, _ in ranked) == [0, 1]
            assert rates == sorted(rates, reverse=True)
            await client.report()
            told = [line for line in _page(cluster, 0) if line.startswith("kv_peer_bandwidth_bytes_per_second{")]
            mine_there = [line for line in told if f'peer="reader-{mine or "host"}"' in line]
            assert len(mine_there) == 1
            assert f'lane="{lane}"' in mine_there[0]
            expected = dict(ranked)[0].bytes_per_second
            assert float(mine_there[0].rsplit(" ", 1)[1]) == pytest.approx(expected, rel=1e-6)
            await client.shards.links[0].drop()
            assert (await client.lookup(some_keys(2, 1), counted=True)) is not None
            assert timed == [lane, lane], "a shard that comes back is not measured again"
            assert dict(client.by_bandwidth()) == dict(ranked)


async def test_a_measurement_that_is_none_is_refused(cluster: LocalCluster) -> None:
    from kvstore import messages as m
    from kvstore.deadline import Deadline

    async with await Client.connect(cluster.file, LAYOUT) as client:
        for odd in (m.Measured(9, 5), m.Measured(0, 0)):
            with pytest.raises(BadRequest, match="no measurement"):
                await client.shards.links[0].call(odd, Deadline(2_000))


def _page(cluster: LocalCluster, number: int) -> list[str]:
    with urlopen(cluster.metrics_urls[number], timeout=10) as page:
        return page.read().decode().splitlines()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--device", "gpu"], "no device 'gpu'"),
        (["--device", "cuda:0", "--nixl"], "no CUDA here"),
        (["--device", "cuda:0"], "no CUDA here"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words: list[str], why: str, tmp_path: Path) -> None:
    environment = {**os.environ, "KVSTORE_CUDART": str(tmp_path / "libnone.so")}
    where = ["--listen", "127.0.0.1:0", "--run-dir", str(tmp_path / "run")]
    command = [sys.executable, "-m", "kvstore.cli", "serve", "--blocks", "8", *where, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, env=environment)
    assert done.returncode == 2
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


# --- without a shard's process ----------------------------------------------------------------------------------------

Near = tuple[DeviceArena, Pool, DevicePeer]


@pytest.fixture
def near() -> Iterator[Near]:
    """A pool on `shm` and a peer of it, both in this process."""
    arena = DeviceArena.create(device_named("shm"), SLOTS, LAYOUT.slot_bytes, LAYOUT.block_bytes)
    pool = Pool(arena, Index.create(SLOTS))
    ours, theirs = socket.socketpair()
    fds = [os.dup(arena.memory.fd), os.dup(pool.index.memory.fd), os.pidfd_open(os.getpid())]
    facts = {"shard": 0, "blocks": SLOTS, "layout": _layout_words(LAYOUT), "device": arena.exported.words}
    fds += [os.dup(fd) for fd in arena.exported.fds]
    peer = DevicePeer.enter(facts, fds, ours, arena.device, lends=False)
    yield arena, pool, peer
    peer.close()
    theirs.close()


def _layout_words(layout: Layout) -> dict[str, Any]:
    return json.loads(layout.as_json())


def fill(arena: DeviceArena, pool: Pool, n: int) -> tuple[Any, Any, Any]:
    keys = some_keys(n, 1)
    slots = pool.reserve(n, now_ms=0)
    arena.fill(slots, list(blocks_for(keys)))
    chains = keys.view(np.uint8).reshape(n, 32)[:, :24]
    generations = pool.publish(slots, keys, np.uint64(1), np.full(n, 16), chains, arena.sums(slots), now_ms=0)
    return keys, slots, generations


def test_runs_are_copied_as_one_piece_each(near: Near) -> None:
    arena, pool, peer = near
    keys, slots, _ = fill(arena, pool, 12)
    out = np.zeros((16, LAYOUT.slot_bytes), np.uint8)
    picked = slots[[0, 1, 2, 7, 8, 5]]
    assert peer.read(picked, None, out) == 3
    assert (out[:6, HEADER_BYTES : HEADER_BYTES + LAYOUT.block_bytes] == blocks_for(keys)[[0, 1, 2, 7, 8, 5]]).all()
    assert not out[6:].any()
    with pytest.raises(BadRequest, match="not all in a pool"):
        peer.read(np.array([SLOTS]), None, out)
    with pytest.raises(BadRequest, match="not all in a pool"):
        peer.read(np.array([-1]), None, out)


@pytest.mark.parametrize("verify", [True, False])
def test_a_slot_that_is_written_during_the_copy_is_not_taken(near: Near, verify: bool) -> None:
    arena, pool, peer = near
    keys, slots, generations = fill(arena, pool, 4)
    copy = peer.read

    def overtaken(wanted: Any, rows: Any, out: Any) -> int:
        """The header was read; then its slot is recycled and half written, and only then the data is read."""
        done = copy(wanted, rows, out)
        arena.headers["generation"][slots[2]] += np.uint64(1)
        out[2, HEADER_BYTES : HEADER_BYTES + 64] = 1
        return done

    peer.read = overtaken  # type: ignore[method-assign]
    out = np.zeros((4, LAYOUT.slot_bytes), np.uint8)
    verdicts = read([Part(peer, None, slots)], out, keys, generations, LAYOUT.block_bytes, verify=verify)
    assert verdicts.tolist() == [0, 0, Verdict.RECYCLED, 0]


def test_damage_on_the_device_is_an_error(near: Near) -> None:
    arena, pool, peer = near
    keys, slots, generations = fill(arena, pool, 4)
    bad = np.full(8, 255, np.uint8)
    at = arena._data.address + int(slots[1]) * LAYOUT.block_bytes
    arena.device.move([Move(at, 8, int(bad.ctypes.data), 8, 8, 1)])
    with pytest.raises(ChecksumMismatch, match=f"slot {slots[1]}"):
        read(
            [Part(peer, None, slots)],
            np.zeros((4, LAYOUT.slot_bytes), np.uint8),
            keys,
            generations,
            LAYOUT.block_bytes,
            verify=True,
        )


def test_sums_are_of_what_arrived_not_of_what_the_client_has_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that writes into its staging run while it is pulled: from host memory, and from its device."""
    from kvstore.transport.device import arena as arenas

    device = device_named("shm")
    arena = DeviceArena.create(device, SLOTS, LAYOUT.slot_bytes, LAYOUT.block_bytes)
    host = Arena.create("t", 4, LAYOUT.slot_bytes, LAYOUT.block_bytes, pool=False)
    lent = device.allocate(4 * LAYOUT.block_bytes)
    exported = lent.export()
    staging = arena.beside(host, {**exported.words, "slots": 4}, [os.dup(fd) for fd in exported.fds])
    theirs = DeviceRows(device, lent.address, 4, LAYOUT.block_bytes)
    before, after = blocks_for(some_keys(4, 1)), blocks_for(some_keys(4, 2))
    real = device.move
    late = host_moves(theirs.address, np.arange(4), after, LAYOUT.block_bytes)

    def summed(data: Any) -> Any:
        assert not np.shares_memory(data, host.data), "summed where the client can write"
        host.data[:] = after
        return sums(data)

    def moved(moves: Any) -> None:
        real(moves)
        real(late)

    monkeypatch.setattr(arenas, "sums", summed)
    for source in (np.arange(4), np.arange(4, 8)):
        host.data[:] = before
        theirs.upload(before)
        target = np.array([5, 6, 20, 1])
        with monkeypatch.context() as patch:
            patch.setattr(device, "move", moved)
            found = arena.pull(staging, source, target)
        held = np.stack(arena.payloads(target))
        assert (held == before).all()
        assert (found == sums(held)).all()
    staging.close()


def test_a_closed_peer_reads_nothing_more(near: Near) -> None:
    arena, pool, peer = near
    _, slots, _ = fill(arena, pool, 2)
    peer.close()
    peer.close()
    with pytest.raises(ShardUnavailable, match="closed"):
        peer.read(slots, None, np.zeros((2, LAYOUT.slot_bytes), np.uint8))


_HOLDER = """
import sys, time
from kvstore.arena import Memory
from kvstore.transport.device.holder import Mark
mark = Mark(Memory.adopt(int(sys.argv[1]), writable=True))
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("what", ["read", "read_onto", "payloads", "sums", "fill", "pull"])
def test_what_was_copied_while_who_holds_the_pool_ended_counts_for_nothing(
    near: Near, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena, pool, peer = near
    keys, slots, _ = fill(arena, pool, 4)
    staging = Arena.create("t", 4, LAYOUT.slot_bytes, LAYOUT.block_bytes, pool=False)
    out, room = np.zeros((4, LAYOUT.slot_bytes), np.uint8), DeviceRows.allocate(arena.device, 4, LAYOUT.block_bytes)
    does: dict[str, Any] = {
        "read": lambda: peer.read(slots, None, out),
        "read_onto": lambda: peer.read_onto(slots, np.arange(4), out, room.address, np.arange(4)),
        "payloads": lambda: arena.payloads(slots),
        "sums": lambda: arena.sums(slots),
        "fill": lambda: arena.fill(slots, list(blocks_for(keys))),
        "pull": lambda: arena.pull(staging, np.arange(4), slots),
    }
    page = Memory.create("t", PAGE, readers_cannot_write=False)
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, str(page.fd)], pass_fds=[page.fd], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    arena.holder, peer._holder = Holder(os.dup(page.fd)), Holder(os.dup(page.fd))
    real, copied = arena.device.move, []

    def overtaken(moves: Any) -> None:
        real(moves)
        copied.append(len(moves))
        holder.kill()
        holder.wait()

    does[what]()  # while it lives
    monkeypatch.setattr(arena.device, "move", overtaken)
    with pytest.raises(ShardUnavailable, match="the process that held its pool has ended, and the pool with it"):
        does[what]()
    assert copied
    monkeypatch.undo()
    with pytest.raises(ShardUnavailable):
        does[what]()
    holder.communicate()


def test_more_blocks_than_the_bounce_buffer_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvstore.transport.device import bounce

    monkeypatch.setattr(bounce, "BOUNCE_BYTES", 5 * LAYOUT.block_bytes)
    arena = DeviceArena.create(device_named("shm"), SLOTS, LAYOUT.slot_bytes, LAYOUT.block_bytes)
    keys = some_keys(23, 2)
    slots = np.random.default_rng(5).permutation(SLOTS)[:23]
    arena.fill(slots, list(blocks_for(keys)))
    assert (np.stack(arena.payloads(slots)) == blocks_for(keys)).all()
    assert (arena.sums(slots) == sums(blocks_for(keys))).all()


async def test_other_tasks_go_on_while_a_client_waits(cluster: LocalCluster, device: str) -> None:
    """A get that has to wait for a newer version gives the loop back, and ends with its deadline."""
    keys = some_keys(3, 50)
    async with await Client.connect(cluster.file, LAYOUT, device=device) as client:
        await client.put(keys, blocks_for(keys))
        ticks = asyncio.create_task(asyncio.sleep(0.01))
        late = await client.get_on_device(keys, client.device_rows(3), min_clock=1 << 40, deadline_ms=100)
        assert ticks.done()
        assert not late.found.any()
