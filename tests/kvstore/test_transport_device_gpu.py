"""On a real GPU (or two): what the tests over a stub of the runtime cannot show. Skips by name where there is none."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.errors import BadRequest, ShardUnavailable
from kvstore.layout import Layout
from kvstore.transport.device.cuda import CudaDevice
from kvstore.transport.device.memory import device_named
from kvstore.transport.device.runtime import runtime
from tests.kvstore.device_rig import forget_devices
from tests.kvstore.nixl_rig import NEEDS_NIXL
from tests.kvstore.process_rig import some_keys

LAYOUT = Layout("gpu", layers=2, heads=8, head_dim=128, block_tokens=16, window_tokens=512)
"""64 KiB a block."""
BLOCKS = 2048


@pytest.fixture(scope="module")
def gpus() -> Iterator[list[str]]:
    """The pool's and the client's: one card where there is only one."""
    forget_devices()
    try:
        device_named("cuda:0")
    except BadRequest as error:
        pytest.skip(f"no GPU: {error}")
    yield ["cuda:0", f"cuda:{min(1, runtime().devices - 1)}"]
    forget_devices()


@pytest.fixture(scope="module")
def cluster(gpus: list[str]) -> Iterator[LocalCluster]:
    with LocalCluster(1, LAYOUT, BLOCKS, device=gpus[0]) as running:
        yield running


def blocks_of(keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Bytes that say whose they are."""
    words = np.arange(LAYOUT.block_bytes // 8, dtype=np.uint64)
    with np.errstate(over="ignore"):
        return ((keys[:, :1] ^ keys[:, 3:4]) * np.uint64(0x9E3779B97F4A7C15) + words[None]).view(np.uint8)


@pytest.mark.parametrize("verify", [True, False])
async def test_blocks_go_there_and_back(cluster: LocalCluster, gpus: list[str], verify: bool) -> None:
    keys = some_keys(300, seed=10 + verify)
    async with await Client.connect(cluster.file, LAYOUT, device=gpus[1]) as client:
        await client.put(keys, blocks_of(keys))
        assert ((await client.get(keys, client.buffer(300), verify=verify)).data == blocks_of(keys)).all()
        room = client.device_rows(400)
        room.upload(np.full((400, LAYOUT.block_bytes), 7, np.uint8))
        places = np.random.default_rng(1).permutation(400)[:300]
        assert (await client.get_on_device(keys, room, places=places, verify=verify)).found.all()
        now = room.download()
        assert (now[places] == blocks_of(keys)).all()
        assert (np.delete(now, places, axis=0) == 7).all()
        assert client.by_bandwidth()[0][1].lane == "cuda_ipc"


async def test_short_runs_go_in_one_launch(cluster: LocalCluster, gpus: list[str]) -> None:
    pytest.importorskip("torch", reason="torch is not installed (kvscope[cuda])")
    pytest.importorskip("triton", reason="triton is not installed (kvscope[cuda])")
    keys = some_keys(256, seed=20)
    async with await Client.connect(cluster.file, LAYOUT, device=gpus[1]) as client:
        await client.put(keys, blocks_of(keys))
        device = client.side.device
        assert isinstance(device, CudaDevice)
        assert device.gather is not None
        assert {"torch", "triton"} <= set(sys.modules)
        launched: list[int] = []
        real = device.gather._copy

        def noted(*arguments: Any) -> None:
            real(*arguments)
            launched.append(len(arguments[1]))

        device.gather._copy = noted  # type: ignore[method-assign]
        room = client.device_rows(256)
        picked = keys[np.random.default_rng(2).permutation(256)[:128]]
        assert (await client.get_on_device(picked, room, verify=False)).found.all()
        assert (room.download()[:128] == blocks_of(picked)).all()
        assert launched == [128], "the kernel did not run (it would have been said why)"
        assert device.gather.usable


async def test_tensors_are_read_from_and_into(cluster: LocalCluster, gpus: list[str]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (kvscope[cuda])")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    keys = some_keys(40, seed=30)
    blocks = blocks_of(keys)
    async with await Client.connect(cluster.file, LAYOUT, device=gpus[1]) as client:
        run = await client.stage_on_device(40)
        torch.as_tensor(run.rows, device=gpus[1]).copy_(torch.from_numpy(blocks))
        await client.put(keys, run)
        plane = torch.zeros((64, *LAYOUT.block_shape), dtype=torch.float16, device=gpus[1])
        places = np.arange(63, 23, -1)
        assert (await client.get_on_device(keys, plane, places=places)).found.all()
        now = plane.view(torch.uint8).reshape(64, -1).cpu().numpy()
        assert (now[places] == blocks).all()
        assert not now[:24].any()


async def test_a_killed_shard_leaves_the_gpu_usable(gpus: list[str]) -> None:
    keys = some_keys(64, seed=40)
    with LocalCluster(1, LAYOUT, 256, device=gpus[0]) as mortal:
        async with await Client.connect(mortal.file, LAYOUT, device=gpus[1]) as client:
            await client.put(keys, blocks_of(keys))
            located = await client.lookup(keys, lease_ms=30_000)
            mortal.kill(0)
            with pytest.raises(ShardUnavailable):
                await client.get_on_device(located, client.device_rows(64), deadline_ms=300)
            room = client.device_rows(64)
            room.upload(blocks_of(keys))
            assert (room.download() == blocks_of(keys)).all()
            mortal.restart(0)
            await client.put(keys, blocks_of(keys), deadline_ms=30_000)
            assert (await client.get_on_device(keys, room)).found.all()


async def test_a_client_that_leaves_gives_its_memory_back(cluster: LocalCluster, gpus: list[str]) -> None:
    device = device_named(gpus[1])
    async with await Client.connect(cluster.file, LAYOUT, device=gpus[1]):
        taken = device.free_bytes() or 0
    assert (device.free_bytes() or 0) >= taken + (60 << 20)


@NEEDS_NIXL
@pytest.mark.parametrize("verify", [True, False])
async def test_a_pool_on_the_card_is_read_by_nixl_and_by_its_handle(gpus: list[str], verify: bool) -> None:
    """The mover's memory: registered there as VRAM, opened by the shard and by clients of this host."""
    keys = some_keys(200, seed=50)
    options: dict[str, Any] = {"device": gpus[1], "deadline_ms": 30_000}
    with LocalCluster(1, LAYOUT, 512, device=gpus[0], nixl=True) as both:
        async with (
            await Client.connect(both.targets, LAYOUT, transport="nixl", **options) as far,
            await Client.connect(both.file, LAYOUT, **options) as near,
        ):
            assert far.shards.links[0].facts["nixl"]["data"]["gpu"] == 0
            await far.put(keys[:100], blocks_of(keys[:100]))
            await near.put(keys[100:], blocks_of(keys[100:]))
            for client in (far, near):
                assert ((await client.get(keys, verify=verify)).data == blocks_of(keys)).all()
                room = client.device_rows(200)
                room.upload(np.zeros((200, LAYOUT.block_bytes), np.uint8))
                assert (await client.get_on_device(keys, room, verify=verify)).found.all()
                assert (room.download() == blocks_of(keys)).all()


@NEEDS_NIXL
async def test_a_killed_mover_takes_the_pool_along_and_leaves_the_gpu_usable(gpus: list[str]) -> None:
    keys = some_keys(64, seed=60)
    with LocalCluster(1, LAYOUT, 256, device=gpus[0], nixl=True) as mortal:
        async with await Client.connect(mortal.file, LAYOUT, device=gpus[1], deadline_ms=30_000) as client:
            await client.put(keys, blocks_of(keys))
            located = await client.lookup(keys, lease_ms=30_000)
            os.kill(int(mortal.facts[0]["pool_pid"]), signal.SIGKILL)
            assert await asyncio.to_thread(mortal.processes[0].wait, 30) == 1
            with pytest.raises(ShardUnavailable):
                await client.get_on_device(located, client.device_rows(64), deadline_ms=500)
            room = client.device_rows(64)
            room.upload(blocks_of(keys))
            assert (room.download() == blocks_of(keys)).all()
            await asyncio.to_thread(mortal.restart, 0)
            assert not (await client.get(keys)).found.any()
            await client.put(keys, blocks_of(keys))
            assert (await client.get_on_device(keys, room)).found.all()
