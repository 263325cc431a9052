"""Who comes in by nixl: every field of a hello is checked, silence ends, and many visits leave nothing behind."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore.bench.far import only as lane
from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.deadline import Deadline
from kvstore.errors import BadRequest, ShardUnavailable, StagingRejected, StoreError
from kvstore.server import ShardServer
from kvstore.settings import Settings
from kvstore.shard import Shard
from kvstore.transport.nixl import service
from kvstore.transport.nixl.client import Stream
from kvstore.transport.nixl.hello import MAX_HELLO, Hello
from kvstore.transport.nixl.lanes import Lane, lanes_of
from kvstore.transport.nixl.owner import Owner
from tests.kvstore.nixl_rig import NEEDS_NIXL, counted, mover_of, until
from tests.kvstore.process_rig import LAYOUT, Helper, blocks_for, some_keys

HELLO = Hello(LAYOUT, "t", 1, "staging-" + "0" * 32, b"m", 4096, 4)


# --- without NIXL ---------------------------------------------------------------------------------------------------


def test_a_hello_is_read_back_as_it_was_said() -> None:
    assert Hello.unpack(HELLO.pack()) == HELLO


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("protocol", 1),
        ("layout", None),
        ("layout", []),
        ("layout", {"model_id": "x", "heads": 0}),
        ("agent", "a guest"),
        ("agent", "staging-" + "0" * 31),
        ("agent", None),
        ("metadata", "not base64!"),
        ("metadata", ""),
        ("metadata", base64.b64encode(bytes(40_000)).decode()),
        ("metadata", 7),
        ("base", 0),
        ("base", -4096),
        ("base", 1.5),
        ("base", True),
        ("base", "4096"),
        ("base", 1 << 64),
        ("slots", 0),
        ("slots", 1 << 40),
        ("pid", -1),
    ],
)
def test_every_field_of_a_hello_is_checked(field: str, value: Any) -> None:
    said = json.loads(HELLO.pack()) | {field: value}
    with pytest.raises(BadRequest):
        Hello.unpack(json.dumps(said).encode())


def test_what_is_no_hello_at_all_is_refused() -> None:
    for data in (b"", b"{", b"[]", b"\xff", b"[" * 30_000, HELLO.pack() + bytes(MAX_HELLO)):
        with pytest.raises(BadRequest):
            Hello.unpack(data)
    with pytest.raises(StagingRejected):
        Hello.unpack(replace(HELLO, base=(1 << 63) - 1).pack())


UCX_SAYS = """\
[1.2] [h:1:0]      ucp_worker.c:1997 UCX  INFO    I self cfg#0 rma(self/memory)
[1.2] [h:1:0]   +--------+-------------+-----------------------------------+
[1.2] [h:1:0]   | I self cfg#0                                             |
[1.2] [h:1:0]   | remote memory read by ucp_get*(multi) into host memory   |
[1.2] [h:1:0]   +--------+-------------+-----------------------------------+
[1.2] [h:1:0]   | 0..inf | zero-copy   | self/memory                       |
[1.2] [h:1:0]   +--------+-------------+-----------------------------------+
[1.2] [h:1:0]   | I inter-node cfg#1                                       |
[1.2] [h:1:0]   | remote memory write by ucp_put* from host memory to host |
[1.2] [h:1:0]   +--------+-------------+-----------------------------------+
[1.2] [h:1:0]   | 0..inf | zero-copy   | tcp/eth0                          |
[1.2] [h:1:0]   +--------+-------------+-----------------------------------+
[1.2] [h:1:0]   | I inter-node cfg#1                                       |
[1.2] [h:1:0]   | remote memory read by ucp_get*(multi) into host memory   |
[1.2] [h:1:0]   +--------+-------------+-----------------------------------+
[1.2] [h:1:0]   | Range  | Description | Config                            |
[1.2] [h:1:0]   +--------+-------------+-----------------------------------+
[1.2] [h:1:0]   | 0..16383 | zero-copy | rc_mlx5/mlx5_0:1                  |
[1.2] [h:1:0]   | 16K..inf | zero-copy | 52% on rc_mlx5/mlx5_0:1 and 48% on rc_verbs/rxe0:1 |
[1.2] [h:1:0]   +--------+-------------+-----------------------------------+
"""


def test_lanes_are_those_that_reads_of_others_take() -> None:
    assert lanes_of(UCX_SAYS) == [Lane("rc_mlx5", "mlx5_0:1"), Lane("rc_verbs", "rxe0:1")]
    assert lanes_of("") == []
    assert lanes_of("noise | with | bars\n| remote memory read | tcp/lo |") == []


# --- with it --------------------------------------------------------------------------------------------------------


@pytest.fixture
def tcp() -> Iterator[None]:
    with lane("tcp"):
        yield


@pytest.fixture
async def server(tcp: None, tmp_path: Path) -> AsyncIterator[ShardServer]:
    """A shard in this very process."""
    settings = Settings(LAYOUT, 64, nixl=True, metrics_port=None, run_dir=tmp_path)
    running = ShardServer(Shard.create(LAYOUT, 64), settings)
    await running.start()
    yield running
    await running.stop(1)


@NEEDS_NIXL
async def test_a_region_that_was_not_registered_is_refused_at_the_hello(server: ShardServer) -> None:
    memory = np.zeros((8, LAYOUT.slot_bytes), np.uint8)
    owner = await asyncio.to_thread(Owner, "staging", serves=True)
    owner.call(lambda agent: agent.register(memory.ctypes.data, memory.nbytes))
    metadata = owner.call(lambda agent: agent.metadata)
    good = Hello(LAYOUT, "liar", os.getpid(), owner.name, metadata, memory.ctypes.data, 8)
    address = f"127.0.0.1:{server.port}"

    async def outcome(hello: Hello) -> str:
        stream = Stream(address)
        try:
            facts = await stream.open(hello.pack(), Deadline(10_000))
            return str(facts["client"])
        except StoreError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            await stream.close()

    for lie in (
        replace(good, slots=9),
        replace(good, base=good.base - LAYOUT.slot_bytes),
        replace(good, base=4096),
        replace(good, agent="staging-" + "1" * 32),
        replace(good, metadata=metadata[:100]),
        replace(good, metadata=b"nixlSerDes|" + os.urandom(200)),
        replace(good, metadata=os.urandom(300)),
    ):
        assert (await outcome(lie)).startswith("StagingRejected: staging arena"), lie
    assert len(server.clients) == 0
    assert (await outcome(good)).isdigit()
    assert server._nixl is not None
    assert server._nixl.mover_pid
    await until(lambda: len(server.clients) == 0, "the guest has left")
    await asyncio.to_thread(owner.close)


@NEEDS_NIXL
async def test_a_client_that_falls_silent_is_forgotten(server: ShardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SILENT_S", 4.0)
    with Helper(GUEST, f"127.0.0.1:{server.port}") as helper:
        assert (await asyncio.to_thread(helper.heard, 60)) == "leased"
        assert len(server.clients) == 1
        assert server.shard.leases == 1
        await asyncio.sleep(5.0)
        assert len(server.clients) == 1  # it reports once a second
        helper.process.send_signal(signal.SIGSTOP)
        await until(lambda: len(server.clients) == 0, "the frozen client is forgotten")
        assert server.shard.leases == 0
        helper.process.send_signal(signal.SIGCONT)
        helper.tell("again")
        assert (await asyncio.to_thread(helper.heard, 60)) == "back"
        assert len(server.clients) == 1


GUEST = """
import sys
from kvstore.sync import SyncClient
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys

with SyncClient(sys.argv[1], LAYOUT, transport="nixl", deadline_ms=30_000) as client:
    keys = some_keys(4, 1)
    client.put(keys, blocks_for(keys))
    client.lookup(keys, lease_ms=60_000)
    say("leased")
    ask()
    client.put(some_keys(4, 2), blocks_for(some_keys(4, 2)), deadline_ms=30_000)
    assert (client.get(keys, deadline_ms=30_000).data == blocks_for(keys)).all()
    say("back")
    ask()
"""


@NEEDS_NIXL
async def test_many_visits_leave_nothing_behind(tcp: None) -> None:
    keys = some_keys(4, seed=1)
    with LocalCluster(1, LAYOUT, 64, nixl=True) as cluster:
        mover = mover_of(cluster.pids[0])

        async def visit() -> None:
            async with await Client.connect(cluster.targets, LAYOUT, transport="nixl", deadline_ms=30_000) as client:
                await client.put(keys, blocks_for(keys))
                out = client.buffer(len(keys))
                assert ((await client.get(keys, out)).data == blocks_for(keys)).all()

        for _ in range(4):
            await visit()
        pids = {"client": os.getpid(), "shard": cluster.pids[0], "mover": mover}
        before = {who: counted(pid) for who, pid in pids.items()}
        for _ in range(12):
            await visit()
        await until(lambda: counted(mover)["fds"] <= before["mover"]["fds"] + 2, "the mover has closed its connections")
        for who, pid in pids.items():
            after = counted(pid)
            assert after["fds"] <= before[who]["fds"] + 3, (who, before[who], after)
            assert after["threads"] <= before[who]["threads"] + 1, (who, before[who], after)
            assert after["rss_kib"] <= before[who]["rss_kib"] + 16_384, (who, before[who], after)


@NEEDS_NIXL
async def test_without_a_mover_a_shard_says_so(server: ShardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server._nixl is not None
    monkeypatch.setattr(service, "HELLO_TIMEOUT_S", 0.3)
    monkeypatch.setattr("kvstore.transport.nixl.hands.AGAIN_S", 30.0)
    monkeypatch.setattr("kvstore.transport.nixl.hands.LONGEST_AGAIN_S", 30.0)
    os.kill(server._nixl.mover_pid, signal.SIGKILL)
    await until(lambda: server._nixl is not None and not server._nixl.mover_pid, "the mover is gone")
    with pytest.raises(ShardUnavailable, match=r"mover has not answered within 0\.3 s"):
        await Client.connect(f"127.0.0.1:{server.port}", LAYOUT, transport="nixl", deadline_ms=2_000)
