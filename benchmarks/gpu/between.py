"""Blocks from one process to another without the host: `mapped` by CUDA IPC, and NIXL from GPU memory.

NIXL twice: bare, of a segment that another process has registered (`vram.py`), and from a shard whose mover has its
pool on the GPU (`kvstore serve --device --nixl`).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from gpu import vram
from gpu.check import Check
from gpu.rows import one_line
from gpu.scenes import Draw
from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.keys import Keys, block_keys
from kvstore.layout import Layout
from kvstore.transport.device.rows import DeviceRows
from kvstore.transport.device.staging import DeviceStaged
from kvstore.transport.nixl.lanes import lanes_of
from kvstore.transport.nixl.library import flavour, ucx_log

POOL = "nixl, a shard's pool on the device"
Blocks = np.ndarray[Any, np.dtype[np.uint8]]


def run(check: Check) -> None:
    try:
        asyncio.run(mapped(check))
    except Exception as error:
        check.failed("mapped", one_line(error))
    if check.left() <= 0:
        check.unfinished("nixl")
        return
    vram.run(check)
    if check.left() <= 0:
        check.skipped(POOL, "no time was left")
    elif flavour() is None:
        check.skipped(POOL, "no wheel of NIXL is here (make gpu-wheels GPU_WHEELS=nixl-cu13)")
    else:
        try:
            asyncio.run(by_nixl(check))
        except Exception as error:
            check.failed(POOL, one_line(error))


def scene(check: Check) -> tuple[str, Layout, Keys]:
    """The device, and blocks."""
    layout = Layout("gpu-check", heads=2, head_dim=16) if check.cpu else Layout("gpu-check", heads=8, head_dim=128)
    random = np.random.default_rng(check.seed)
    keys = block_keys([random.bytes(24) for _ in range(64 if check.cpu else 4096)], 0, 0)
    return "shm" if check.cpu else "cuda:0", layout, keys


async def by_nixl(check: Check) -> None:
    """A shard whose mover has its pool on this GPU, read from here over a lane of UCX, onto this GPU and off it."""
    device, layout, keys = scene(check)
    with LocalCluster(1, layout, 2 * len(keys), device=device, nixl=True) as cluster:
        async with await Client.connect(
            cluster.targets, layout, transport="nixl", device=device, deadline_ms=20_000
        ) as client:
            blocks: Blocks = Draw(check.seed, "cpu").bytes(len(keys), layout.block_bytes).numpy()
            for first in range(0, len(keys), 256):
                await client.put(keys[first : first + 256], blocks[first : first + 256])
            off = await client.get(keys, client.buffer(len(keys)))
            if not off.found.all() or (off.data != blocks).any():
                check.wrong_number(f"{POOL}, off the device", "other bytes than were put")
                return
            reader = Reader(check, client, client.device_rows(len(keys)), f"{POOL}: ")
            for verify in (True, False):
                await reader.right(keys, blocks, verify=verify)
            await reader.rate("get", keys, verify=False)
            lanes = ", ".join(sorted({lane.lane for lane in lanes_of(ucx_log())}))
            check.right(f"{POOL}, off the device", 0, "blocks differ", f"{len(keys)} blocks over {lanes or '?'}")


async def mapped(check: Check) -> None:
    """A shard whose pool is on this GPU, put into from here and read from here: a process each."""
    device, layout, keys = scene(check)
    count, random = len(keys), np.random.default_rng(check.seed + 1)
    with LocalCluster(1, layout, 2 * count, device=device) as cluster:
        async with await Client.connect(cluster.file, layout, device=device, deadline_ms=20_000) as client:
            reader = Reader(check, client, client.device_rows(count))
            blocks = await filled(check, client, keys)
            for verify in (True, False):
                await reader.right(keys, blocks, verify=verify)
            await reader.rate("get, runs as they were put", keys, verify=False)
            await reader.rate("get, scattered", keys[random.permutation(count)], verify=False)
            await reader.rate("get, runs, sums checked", keys[: count // 8], verify=True)


async def filled(check: Check, client: Client, keys: Keys) -> Blocks:
    """Random blocks, staged on the device and pulled from there by the shard; what they are, on the host."""
    size = client.layout.block_bytes
    blocks: Blocks = Draw(check.seed, "cpu").bytes(len(keys), size).numpy()
    at_once = max(1, min(len(keys), (32 << 20) // size))
    seconds = 0.0
    for first in range(0, len(keys), at_once):
        these = slice(first, min(len(keys), first + at_once))
        run = await client.stage_on_device(these.stop - these.start)
        assert isinstance(run, DeviceStaged)
        run.rows.upload(blocks[these])
        began = time.perf_counter()
        await client.put(keys[these], run)
        seconds += time.perf_counter() - began
    check.measured("put from device memory", blocks.nbytes / seconds / 1e9, "GB/s", "sums by both sides")
    return blocks


@dataclass(frozen=True, slots=True)
class Reader:
    """Gets of blocks from the shard's pool into `room`, which is ours. `prefix`: of the rows' names."""

    check: Check
    client: Client
    room: DeviceRows
    prefix: str = ""

    async def right(self, keys: Keys, blocks: Blocks, *, verify: bool) -> None:
        """What arrives where something else was before."""
        self.room.upload(np.full_like(blocks, 0xA5))
        answer = await self.client.get_on_device(keys, self.room, verify=verify)
        wrong = int((self.room.download() != blocks).any(1).sum())
        name = f"{self.prefix}get from another process's pool" + (", sums checked" if verify else "")
        if wrong or not answer.found.all():
            found = int(answer.found.sum())
            self.check.wrong_number(name, f"{found} of {len(keys)} found, {wrong} have other bytes", wrong, "blocks")
        else:
            size = self.client.layout.block_bytes / 1024
            lane = "" if self.prefix else f", {self.room.device.lane}"
            note = f"{len(keys)} blocks of {size:g} KiB{lane}"
            self.check.right(name, 0, "blocks differ", note)

    async def rate(self, name: str, keys: Keys, *, verify: bool) -> None:
        """Median of some gets."""
        taken = []
        for _ in range(3 if self.check.cpu else 9):
            began = time.perf_counter()
            await self.client.get_on_device(keys, self.room, verify=verify)
            taken.append(time.perf_counter() - began)
            if self.check.left() <= 0:
                break
        seconds = median(taken)
        size = len(keys) * self.client.layout.block_bytes
        self.check.measured(
            self.prefix + name, size / seconds / 1e9, "GB/s", f"{len(keys)} blocks, {seconds * 1e3:.2f} ms"
        )
