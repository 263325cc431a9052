"""A shard's server: its door and its gRPC methods take only what they understand; it ends as it should."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from kvstore import door, wire
from kvstore import messages as m
from kvstore.arena import Memory
from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.errors import (
    BadRequest,
    ChecksumMismatch,
    ClientUnknown,
    LayoutMismatch,
    LogFailed,
    ShardUnavailable,
    StagingRejected,
    StoreError,
)
from kvstore.header import header_sums
from kvstore.locations import State
from kvstore.messages import Durability
from kvstore.serve import make_shard
from kvstore.server import ShardServer
from kvstore.settings import Settings, make_run_dir
from tests.kvstore.process_rig import LAYOUT, ROOT, blocks_for, some_keys
from tests.kvstore.shims.forgetful import ForgetfulDisk


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ShardServer]:
    """A shard in this very process: its arena can be reached."""
    settings = Settings(LAYOUT, 64, metrics_port=None, run_dir=tmp_path / "run")
    running = ShardServer(make_shard(settings), settings)
    await running.start()
    yield running
    await running.stop()


def address(server: ShardServer) -> str:
    return f"127.0.0.1:{server.port}"


async def ask(server: ShardServer, method: str, data: bytes) -> Any:
    async with grpc.aio.insecure_channel(address(server)) as channel:
        reply = await channel.unary_unary(f"/{wire.SERVICE}/{method}")(data, timeout=5)
    return wire.unpack_reply(reply)[1]


# --- gRPC -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", list(wire.METHODS.values()))
async def test_bytes_that_are_no_message_get_a_bad_request(server: ShardServer, method: str) -> None:
    rng = np.random.default_rng(1)
    for data in (b"", b"\x01", bytes(32), bytes([wire.VERSION]) + rng.bytes(100), rng.bytes(5000)):
        assert isinstance(await ask(server, method, data), BadRequest)
    assert isinstance(await ask(server, "Ping", wire.pack_request(m.Envelope(), m.Ping())), m.Pong)


async def test_a_message_at_the_wrong_method_gets_a_bad_request(server: ShardServer) -> None:
    answer = await ask(server, "Put", wire.pack_request(m.Envelope(), m.Ping()))
    assert isinstance(answer, BadRequest)
    assert "Put" in str(answer)


async def test_who_did_not_come_through_the_door_is_not_heard(server: ShardServer) -> None:
    keys = some_keys(1, 0)
    for number in (0, 12345):
        answer = await ask(server, "Lookup", wire.pack_request(m.Envelope(client=number), m.Lookup(keys)))
        assert isinstance(answer, ClientUnknown)
        assert "door" in str(answer)


def pinged(server: ShardServer, count: int) -> list[tuple[int, int]]:
    """The kinds and flags of the HTTP/2 frames that answer so many pings at once, and one more after them."""
    found: list[tuple[int, int]] = []
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as talk, talk.makefile("rb") as heard:
        settings, ping = b"\0\0\0\4\0\0\0\0\0", b"\0\0\x08\6\0\0\0\0\0" + bytes(8)
        talk.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + ping * count)
        while found.count((6, 1)) <= count and (head := heard.read(9)):
            found.append((head[3], head[4]))
            heard.read(int.from_bytes(head[:3], "big"))
            if found.count((6, 1)) == count and found[-1] == (6, 1):
                talk.sendall(ping)
    return found


async def test_pings_that_come_together_do_not_end_a_connection(server: ShardServer) -> None:
    """As those do that waited for a shard which was stopped: its clients once read of ENHANCE_YOUR_CALM."""
    found = await asyncio.to_thread(pinged, server, 100)
    assert found.count((6, 1)) == 101
    assert not [kind for kind, _ in found if kind == 7], "a GOAWAY"


@pytest.mark.parametrize("clock", [(1 << 64) - 1, (1 << 62) + 1, 1 << 62, 1 << 50])
async def test_one_message_from_the_far_future_does_not_end_a_shard(server: ShardServer, clock: int) -> None:
    keys = some_keys(2, 0)
    async with await Client.connect(address(server), LAYOUT) as client:
        number = client.shards.links[0].facts["client"]
        for method, message in (("Lookup", m.Lookup(keys, lease_ms=1)), ("Ping", m.Ping()), ("Remove", m.Remove(keys))):
            answer = await ask(server, method, wire.pack_request(m.Envelope(clock, client=number), message))
            assert isinstance(answer, BadRequest | m.Pong)
        assert server.shard.clock.now < 1 << 20
        await client.put(keys, blocks_for(keys))
        assert (await client.lookup(keys, counted=True)).found.all()


async def test_a_blocks_header_from_the_far_future_is_refused_by_its_reader(server: ShardServer) -> None:
    keys = some_keys(2, 0)
    async with await Client.connect(address(server), LAYOUT) as client:
        done = await client.put(keys, blocks_for(keys))
        rows = server.shard.pool.arena.headers
        for slot in done.slot.tolist():
            rows["clock"][slot] = (1 << 64) - 1
            one = server.shard.pool.arena.slots[slot : slot + 1]
            rows["header_sum"][slot] = header_sums(one)[0]
        for what in (keys, await client.lookup(keys), await client.lookup(keys[:1])):
            with pytest.raises(BadRequest, match="clock"):
                await client.get(what, client.buffer(len(what)))
        assert (await client.lookup(keys, counted=True)).found.all()


async def test_a_staging_slot_outside_the_arena_is_refused(server: ShardServer) -> None:
    keys = some_keys(1, 0)
    async with await Client.connect(address(server), LAYOUT, staging_blocks=4) as client:
        chains = keys.view(np.uint8).reshape(1, 32)[:, :24]
        for slot in (4, 1 << 40):
            put = m.Put(keys, np.array([slot]), np.zeros(1, np.uint64), np.array([16]), chains)
            number = client.shards.links[0].facts["client"]
            answer = await ask(server, "Put", wire.pack_request(m.Envelope(client=number, ticket=9), put))
            assert isinstance(answer, StagingRejected)


async def test_a_cancelled_ticket_is_refused_when_its_put_arrives_late(server: ShardServer) -> None:
    keys = some_keys(1, 0)
    async with await Client.connect(address(server), LAYOUT, staging_blocks=4) as client:
        number = client.shards.links[0].facts["client"]
        envelope = m.Envelope(client=number, ticket=5)
        cancelled = await ask(server, "Cancel", wire.pack_request(envelope, wire.Cancel(np.array([5], np.uint64))))
        assert cancelled.tickets.tolist() == [5]
        put = m.Put(keys, np.array([0]), np.zeros(1, np.uint64), np.array([16]), np.zeros((1, 24), np.uint8))
        assert isinstance(await ask(server, "Put", wire.pack_request(envelope, put)), StagingRejected)


async def test_a_flipped_byte_in_the_pool_is_an_error_and_not_an_answer(server: ShardServer) -> None:
    keys = some_keys(4, 0)
    async with await Client.connect(address(server), LAYOUT) as client:
        done = await client.put(keys, blocks_for(keys))
        slot = int(done.slot[2])
        arena = server.shard.pool.arena
        for place in (0, LAYOUT.block_bytes - 1):
            arena.data[slot, place] ^= 1
            for what in (keys, keys[2:3], await client.lookup(keys), await client.lookup(keys[2:3], lease_ms=1000)):
                with pytest.raises(ChecksumMismatch, match=f"slot {slot}"):
                    await client.get(what, client.buffer(len(what)))
            arena.data[slot, place] ^= 1
        for place in (0, 31, 33, 45, 57, 81, 90):  # key, generation, clock, chain, both sums
            arena.slots[slot, place] ^= 4
            try:
                blocks = await client.get(keys, deadline_ms=30)
                assert blocks.found.tolist() == [True, True, False, True]
                assert blocks.state[2] == State.RECYCLED
            except ChecksumMismatch:
                pass
            arena.slots[slot, place] ^= 4
        assert (await client.get(keys)).found.all()
        touch = client.shards.tallies[0].drain()
        assert touch.reads.blocks_corrupt > 0


# --- the door ---------------------------------------------------------------------------------------------------------


async def knock(server: ShardServer, data: bytes, fds: list[int] | None = None) -> dict[str, Any] | None:
    """What the door answers; None when it only hangs up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setblocking(False)
        connection.connect(str(server.facts()["door"]))
        socket.send_fds(connection, [data], fds or [])
        try:
            async with asyncio.timeout(10):
                said, got = await door.receive(connection)
        except ConnectionError:
            return None
        door.close_all(got)
        return said


def hello(**changes: Any) -> bytes:
    said = {"protocol": door.PROTOCOL, "layout": json.loads(LAYOUT.as_json()), "name": "test", **changes}
    return json.dumps(said).encode()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"no json", BadRequest),
        (b"[" * 20_000, BadRequest),
        (b"[]", BadRequest),
        (b"null", BadRequest),
        (b"{}", BadRequest),
        (hello(protocol=99), BadRequest),
        (hello(layout="x"), BadRequest),
        (hello(layout={}), BadRequest),
        (hello(layout={"model_id": "m", "unknown": 1}), BadRequest),
        (hello(layout={**json.loads(LAYOUT.as_json()), "heads": -1}), BadRequest),
        (hello(layout={**json.loads(LAYOUT.as_json()), "heads": 7}), LayoutMismatch),
        (bytes(range(256)) * 40, BadRequest),
    ],
)
async def test_the_door_refuses_what_is_no_hello(server: ShardServer, data: bytes, kind: type[StoreError]) -> None:
    staging = Memory.create("t", LAYOUT.slot_bytes, readers_cannot_write=False)
    before = len(os.listdir("/proc/self/fd"))
    said = await knock(server, data, [staging.fd])
    assert said is not None
    assert said["error"] == kind.code
    assert "\n" not in said["text"]
    assert len(os.listdir("/proc/self/fd")) <= before
    staging.close()
    async with await Client.connect(address(server), LAYOUT) as client:
        assert not (await client.get(some_keys(1, 0))).found.any()


async def test_the_door_takes_one_sealed_memfd_and_nothing_else(server: ShardServer, tmp_path: Path) -> None:
    plain = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(plain, 1 << 20)
    loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(loose, 1 << 20)
    tiny = Memory.create("tiny", 64, readers_cannot_write=False)
    good = Memory.create("good", LAYOUT.slot_bytes, readers_cannot_write=False)
    for fds in ([], [plain], [loose], [tiny.fd], [good.fd, good.fd]):
        said = await knock(server, hello(), fds)
        assert said is not None
        assert said["error"] == StagingRejected.code, said
    said = await knock(server, hello(), [good.fd] * 20)
    assert said is None or "error" in said
    said = await knock(server, hello(), [good.fd])
    assert said is not None
    assert said["client"]
    for fd in (plain, loose):
        os.close(fd)


async def test_a_silent_visitor_does_not_keep_the_door(server: ShardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "HELLO_TIMEOUT_S", 0.1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.setblocking(False)
        silent.connect(str(server.facts()["door"]))
        async with asyncio.timeout(10):
            with pytest.raises(ConnectionError):
                await door.receive(silent)


async def test_a_client_that_leaves_is_forgotten(server: ShardServer) -> None:
    async with await Client.connect(address(server), LAYOUT):
        assert len(server.clients) == 1
        staging = next(iter(server.clients))
        assert staging.staging is not None
    async with asyncio.timeout(10):
        while len(server.clients):
            await asyncio.sleep(0.01)
    assert staging.staging is None


def test_a_run_directory_of_others_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    with pytest.raises(BadRequest, match="others"):
        make_run_dir(shared)
    (tmp_path / "file").touch()
    with pytest.raises((BadRequest, FileExistsError)):
        make_run_dir(tmp_path / "file")


# --- its end ----------------------------------------------------------------------------------------------------------


async def test_sigterm_flushes_what_was_written_and_ends_with_zero() -> None:
    keys = some_keys(16, 1)
    with LocalCluster(1, LAYOUT, 64, durability="log") as cluster:
        async with await Client.connect(cluster.targets, LAYOUT) as client:
            await client.put(keys, blocks_for(keys), durability=Durability.LOG)
            sockets = [Path(cluster.facts[0]["door"]), Path(cluster.facts[0]["calls"])]
            assert all(path.exists() for path in sockets)
            cluster.kill(0, signal.SIGTERM)
            assert cluster.processes[0].returncode == 0
            assert not any(path.exists() for path in sockets)
        cluster.restart(0)
        async with await Client.connect(cluster.targets, LAYOUT) as client:
            assert ((await client.get(keys)).data == blocks_for(keys)).all()


async def test_a_killed_shard_recovers_what_was_durable() -> None:
    keys = some_keys(16, 2)
    with LocalCluster(1, LAYOUT, 64, durability="log+sync") as cluster:
        async with await Client.connect(cluster.targets, LAYOUT) as client:
            await client.put(keys, blocks_for(keys), durability=Durability.LOG_SYNC)
            cluster.kill(0)
            cluster.restart(0)
            assert ((await client.get(keys)).data == blocks_for(keys)).all()


async def test_a_shard_whose_log_cannot_be_flushed_says_so_once_and_stops(tmp_path: Path) -> None:
    disk = ForgetfulDisk(tmp_path)
    keys = some_keys(4, 3)
    own = {0: disk.environment(fail=30)}
    with LocalCluster(1, LAYOUT, 64, durability="log+sync", log_dir=disk.live, environment=own) as cluster:
        async with await Client.connect(cluster.targets, LAYOUT) as client:
            failed = None
            for seed in range(200):
                keys = some_keys(1, 500 + seed)
                try:
                    await client.put(keys, blocks_for(keys), durability=Durability.LOG_SYNC)
                except (LogFailed, ShardUnavailable) as error:
                    failed = error
                    break
            assert failed is not None
            assert await asyncio.to_thread(cluster.processes[0].wait, 20) == 1
            said = cluster.log(0).strip().splitlines()
        assert len(said) == 1
        assert said[0].startswith("kvstore serve: shard 0 stops: ")


async def test_a_shard_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = """
import os, sys
from kvstore.cluster import LocalCluster
from tests.kvstore.process_rig import LAYOUT
cluster = LocalCluster(2, LAYOUT, 16)
cluster.start()
os.kill(cluster.pids[1], 19)
# The kernel continues a stopped process whose group is orphaned; it must have stopped by then.
while open(f"/proc/{cluster.pids[1]}/stat").read().rsplit(")", 1)[1].split()[0] != "T":
    pass
print(*cluster.pids, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()
    async with asyncio.timeout(20):
        while any(_runs(pid) for pid in pids):
            await asyncio.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
