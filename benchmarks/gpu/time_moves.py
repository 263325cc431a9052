"""gather and scatter against a copy of as many bytes from one end of the device's memory to the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpu.check import Check
from gpu.clock import Clock, interleaved
from gpu.ops import operator
from gpu.scenes import Draw, same

AIM = 0.85
"""Of the rate of a device-to-device copy in the same run (the store's aim)."""


@dataclass(frozen=True, slots=True)
class Size:
    """A pool, and how many of its blocks are moved in all planes. `runs`: in runs of so many neighbours."""

    planes: int
    blocks: int
    heads: int
    moved: int
    runs: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """bfloat16, blocks of 16 tokens, head_dim 128."""
        return (2, self.heads, 16, 128)

    def __str__(self) -> str:
        kib = 2 * self.heads * 16 * 128 * 2 // 1024
        size = f"{self.moved * self.planes * kib / 1024:.3g} MiB in blocks of {kib} KiB"
        return size + (f", runs of {self.runs}" if self.runs > 1 else ", scattered")


def run(check: Check) -> None:
    clock = Clock(check)
    if check.cpu:
        sizes = [Size(2, 9, 1, 4)]
    else:
        # 8k tokens of a model of 32 layers with 8 KV heads on one GPU; the same on one of eight; windows of 512 tokens.
        sizes = [Size(32, 1024, 8, 512), Size(32, 8192, 1, 4096), Size(32, 1024, 8, 512, 32)]
    for size in sizes:
        if check.left() > 0:
            measure(check, clock, size)
        else:
            check.skipped(str(size), "no time was left")


def measure(check: Check, clock: Clock, size: Size) -> None:
    draw = Draw(check.seed, check.device)
    pool = draw.bytes(size.planes, size.blocks, *size.shape, dtype=torch.bfloat16)
    staging = draw.bytes(size.planes, size.moved, *size.shape, dtype=torch.bfloat16)
    blocks = listed(size, draw)
    source, target = staging.clone(), torch.empty_like(staging)
    gather, scatter, index = operator("gather", check.wrong), operator("scatter", check.wrong), blocks.long()
    gather(pool, blocks, staging)
    if not same(staging, pool.index_select(1, index)):
        check.wrong_number(f"gather, {size}", "not the blocks that were asked for")
    scatter(pool, blocks, source)
    if not same(source, pool.index_select(1, index)):
        check.wrong_number(f"scatter, {size}", "not in the blocks that were named")
    arms = {
        "copy": lambda: target.copy_(source),
        "gather": lambda: gather(pool, blocks, staging),
        "scatter": lambda: scatter(pool, blocks, staging),
        "index_select": lambda: torch.index_select(pool, 1, index, out=target),
    }
    times = interleaved(check, clock, arms, 2 if check.cpu else 30)
    moved = 2 * staging.nbytes  # read and written
    rates = {name: moved / each.median for name, each in times.items()}
    note = f"{size}; spread {times['copy'].spread:.1%}"
    check.measured(f"device-to-device copy, {size}", rates["copy"] / 1e9, "GB/s", note)
    for name in ("gather", "scatter"):
        told = f"{rates[name] / 1e9:,.0f} GB/s, spread {times[name].spread:.1%}"
        check.aimed(f"{name}, {size}", rates[name] / rates["copy"], "of the copy rate", AIM, told)
    share = rates["index_select"] / rates["copy"]
    check.measured(f"torch.index_select, {size}", share, "of the copy rate", f"{rates['index_select'] / 1e9:,.0f} GB/s")


def listed(size: Size, draw: Draw) -> torch.Tensor:
    """Distinct blocks in no order, as int32; neighbours in runs of `size.runs`."""
    starts = draw.some(size.moved // size.runs, size.blocks // size.runs) * size.runs
    return (starts[:, None] + torch.arange(size.runs, device=starts.device)).reshape(-1).int()
