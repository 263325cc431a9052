"""Paged decode against the bytes that it must read, torch's attention on contiguous KV, and FlashInfer where it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from gpu import building, rival
from gpu.check import Check
from gpu.check_decode import errors
from gpu.clock import Arm, Clock, Times, interleaved
from gpu.exact import attention
from gpu.ops import operator
from gpu.paged import Heads, Scene, scene
from gpu.rows import one_line
from gpu.scenes import Draw, name_of

AIM = 0.80
"""Of a copy's rate in the same run (the store's aim), at 64 sequences of 8k tokens."""
PATIENCE_S = 20.0
"""For what is still being compiled."""
OURS, COPY = "paged_decode", "copy"
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Size:
    """`aimed`: the shape that the aim speaks of. `ragged`: lengths from nearly nothing to twice `length`."""

    batch: int
    length: int
    kv: torch.dtype = BF16
    block_tokens: int = 16
    aimed: bool = False
    ragged: bool = False

    def __str__(self) -> str:
        length = f"{self.length // 1024}k" if self.length >= 1024 else str(self.length)
        kind = f"{self.batch} × {length}" + (", ragged" if self.ragged else "")
        return f"{kind}, {name_of(self.kv)}, blocks of {self.block_tokens}"

    def lengths(self, draw: Draw) -> list[int]:
        if not self.ragged:
            return [self.length] * self.batch
        drawn = draw.numbers(self.batch - 1, 1, 2 * self.length)
        return [*drawn, 2 * self.length]


def run(check: Check) -> None:
    clock = Clock(check)
    heads = Heads(4, 2, 32) if check.cpu else Heads(32, 8, 128)
    if check.cpu:
        sizes = [Size(2, 40, aimed=True), Size(1, 64, E4M3)]
    else:
        sizes = [
            Size(64, 8192, aimed=True), Size(1, 131072), Size(64, 8192, E4M3), Size(1, 131072, E4M3),
            Size(64, 4096, ragged=True), Size(64, 8192, block_tokens=64), Size(8, 8192),
        ]  # fmt: skip
    why = rival.why_not(check.cpu)
    if why:
        check.skipped("FlashInfer", why)
    for size in sizes:
        if check.left() > 0:
            measure(check, clock, size, heads)
        else:
            check.skipped(str(size), "no time was left")


def measure(check: Check, clock: Clock, size: Size, heads: Heads) -> None:
    draw = Draw(check.seed, check.device)
    given = scene(draw, size.lengths(draw), heads, block_tokens=size.block_tokens, kv_dtype=size.kv, one_scale=True)
    op = operator(OURS, check.wrong)
    ours = op(
        given.query, given.keys, given.values, given.tables, given.lengths, given.scale, 0, 0.0,
        given.key_scale, given.value_scale,
    )  # fmt: skip
    right(check, size, given, ours)
    half = torch.empty(given.kv_bytes // 2, dtype=torch.uint8, device=check.device)
    other = torch.empty_like(half)
    arms: dict[str, Arm] = {
        OURS: lambda: op(
            given.query, given.keys, given.values, given.tables, given.lengths, given.scale, 0, 0.0,
            given.key_scale, given.value_scale,
        ),
        COPY: lambda: other.copy_(half),
    }  # fmt: skip
    arms |= rivals(check, size, given, ours)
    tell(check, size, given, interleaved(check, clock, arms, 1 if check.cpu else 25))


def right(check: Check, size: Size, given: Scene, ours: Tensor) -> None:
    """Two of the sequences against float64."""
    worst = 0.0
    for row in {0, len(given.used) - 1}:
        worst = max(worst, *errors(ours[row], attention(given, row), given.query.dtype))
    if worst <= 1.0:
        check.right(f"numbers, {size}", worst, "of tolerance", "two sequences against float64")
    else:
        check.wrong_number(f"numbers, {size}", "against float64", worst, "of tolerance")


def rivals(check: Check, size: Size, given: Scene, ours: Tensor) -> dict[str, Arm]:
    """What else can compute this: torch on contiguous KV (bf16, one length), and FlashInfer. Each is compared first."""
    arms: dict[str, Arm] = {}
    if given.pool.dtype == given.query.dtype and not size.ragged:
        whole = given.contiguous()
        query = given.query.transpose(1, 2)
        group = query.shape[1] // whole.shape[2]
        # Heads that share a KV head as so many query tokens: the way to have torch read KV once.
        folded = query.reshape(len(query), -1, group, query.shape[3])
        arms["SDPA"] = lambda: F.scaled_dot_product_attention(query, whole[0], whole[1], enable_gqa=True)
        arms["SDPA, folded"] = lambda: F.scaled_dot_product_attention(folded, whole[0], whole[1])
    if not rival.why_not(check.cpu):
        try:
            why = building.outcome(name_of(size.kv), min(PATIENCE_S, check.left()))
            if why:
                raise RuntimeError(why)
            arms["FlashInfer"] = rival.flashinfer(given)
        except Exception as error:
            check.skipped(f"FlashInfer, {size}", one_line(error))
    for name in list(arms):
        try:
            compare(check, f"{name}, {size}", arms[name](), ours)
        except Exception as error:
            del arms[name]
            check.skipped(f"{name}, {size}", one_line(error))
    return arms


def compare(check: Check, name: str, theirs: object, ours: Tensor) -> None:
    """Theirs and ours are the same attention, each rounded in its own way."""
    assert isinstance(theirs, Tensor)
    off = max(errors(ours.reshape(-1), theirs.reshape(-1).double(), ours.dtype)) / 2
    if off > 1.0:
        check.wrong_number(name, "ours is not theirs", off, "of what two roundings allow")


def tell(check: Check, size: Size, given: Scene, times: dict[str, Times]) -> None:
    """`copy` moves as many bytes as attention reads: half are read, half written."""
    rates = {name: given.kv_bytes / each.median for name, each in times.items()}
    ours, copy = rates[OURS], rates[COPY]
    note = f"{ours / 1e9:,.0f} GB/s of KV, {times[OURS].median * 1e6:,.1f} µs, spread {times[OURS].spread:.1%}"
    name = f"{OURS}, {size}"
    if size.aimed:
        check.aimed(name, ours / copy, "of the copy rate", AIM, note)
    else:
        check.measured(name, ours / copy, "of the copy rate", note)
    for other in times:
        if other in (OURS, COPY):
            continue
        told = f"{other} {times[other].median * 1e6:,.1f} µs, {rates[other] / 1e9:,.0f} GB/s"
        if other == "FlashInfer" and size.aimed:
            check.aimed(f"{OURS} against {other}, {size}", ours / rates[other], "times as fast", 1.0, told)
        else:
            check.measured(f"{OURS} against {other}, {size}", ours / rates[other], "times as fast", told)
