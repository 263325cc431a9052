"""Blocks from one process to another without the host: `mapped` by CUDA IPC, and NIXL from GPU memory."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import numpy as np

from gpu import vram
from gpu.check import Check
from gpu.rows import one_line
from gpu.scenes import Draw
from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.layout import Layout


def run(check: Check) -> None:
    try:
        asyncio.run(mapped(check))
    except Exception as error:
        check.failed("mapped", one_line(error))
    if check.left() <= 0:
        check.skipped("nixl", "no time was left")
        return
    vram.run(check)


async def mapped(check: Check) -> None:
    """A shard whose pool is on this GPU, put into from here and read from here: a process each."""
    device = "shm" if check.cpu else "cuda:0"
    layout = Layout("gpu-check", heads=2, head_dim=16) if check.cpu else Layout("gpu-check", heads=8, head_dim=128)
    count = 64 if check.cpu else 4096
    keys = np.random.default_rng(check.seed).integers(1, 1 << 62, (count, 4), np.uint64)
    keys[:, 3] &= np.uint64(0xFFFFFFFF)  # layer and head group 0
    with LocalCluster(1, layout, 2 * count, device=device) as cluster:
        async with await Client.connect(cluster.file, layout, device=device, deadline_ms=20_000) as client:
            blocks = await filled(check, client, keys, layout.block_bytes)
            room = client.device_rows(count)
            for verify in (True, False):
                answer = await client.get_on_device(keys, room, verify=verify)
                arrived = room.download()
                name = "get from another process's pool" + (", sums checked" if verify else "")
                if not answer.found.all() or not np.array_equal(arrived, blocks):
                    wrong = int((arrived != blocks).any(1).sum())
                    check.wrong_number(name, f"{int(answer.found.sum())} of {count} found, {wrong} differ")
                else:
                    check.right(name, None, note=f"{count} blocks of {layout.block_bytes // 1024} KiB through {device}")
            order = np.random.default_rng(check.seed + 1).permutation(count)
            for name, asked in (("runs as they were put", keys), ("scattered", keys[order])):
                await rate(
                    check, f"get, {name}", asked, lambda these: client.get_on_device(these, room, verify=False), layout
                )
            await rate(
                check,
                "get with sums, runs",
                keys[: count // 8],
                lambda these: client.get_on_device(these, room),
                layout,
            )


async def filled(check: Check, client: Client, keys: np.ndarray, block_bytes: int) -> np.ndarray:  # type: ignore[type-arg]
    """Random blocks, staged on the device and pulled from there by the shard; what they are, on the host."""
    blocks = Draw(check.seed, "cpu").bytes(len(keys), block_bytes).numpy()
    at_once = max(1, min(len(keys), (32 << 20) // block_bytes))
    seconds = 0.0
    for first in range(0, len(keys), at_once):
        these = slice(first, min(len(keys), first + at_once))
        run = await client.stage_on_device(these.stop - these.start)
        run.rows.upload(blocks[these])  # type: ignore[attr-defined]
        began = time.perf_counter()
        await client.put(keys[these], run)
        seconds += time.perf_counter() - began
    check.measured("put from device memory", blocks.nbytes / seconds / 1e9, "GB/s", "sums by the shard and by us")
    return blocks


async def rate(
    check: Check,
    name: str,
    keys: np.ndarray,
    get: Callable[[np.ndarray], Awaitable[object]],
    layout: Layout,  # type: ignore[type-arg]
) -> None:
    """Median of some gets."""
    taken = []
    for _ in range(3 if check.cpu else 9):
        began = time.perf_counter()
        await get(keys)
        taken.append(time.perf_counter() - began)
        if check.left() <= 0:
            break
    seconds = statistics.median(taken)
    size = len(keys) * layout.block_bytes
    check.measured(name, size / seconds / 1e9, "GB/s", f"{len(keys)} blocks, {seconds * 1e3:.2f} ms")
