"""append: the bytes of every token in its slot and nothing else touched; with scales, as near as eight bits allow."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu.check import Check
from gpu.ops import Op, operator
from gpu.scenes import DTYPES, FP8, Draw, name_of, same
from gpu.tally import Tally

_MANTISSA = {torch.float8_e4m3fn: 3, torch.float8_e5m2: 2}
_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
_TINY = {torch.float8_e4m3fn: 2.0**-9, torch.float8_e5m2: 2.0**-16}
"""Bits of mantissa, largest value and smallest step of both formats (Micikevicius et al., 2022)."""


@dataclass(frozen=True, slots=True)
class Shape:
    tokens: int
    heads: int
    head_dim: int
    blocks: int
    block_tokens: int


def run(check: Check) -> None:
    op = operator("append", check.wrong)
    for dtype in DTYPES:
        tally = Tally(check, f"append {name_of(dtype)}")
        for shape in shapes(check.cpu):
            if check.left() > 0:
                tally.case(copied(op, shape, dtype, Draw(check.seed, check.device)), str(shape))
            else:
                tally.leave_out()
        tally.tell()
    for dtype in FP8:
        for source in (torch.bfloat16, torch.float16, torch.float32):
            tally = Tally(check, f"append {name_of(source)} as {name_of(dtype)}", "roundings")
            for shape in shapes(check.cpu)[:2]:
                if check.left() > 0:
                    off = encoded(op, shape, source, dtype, Draw(check.seed, check.device))
                    tally.case(off <= 1.0, str(shape), off)
                else:
                    tally.leave_out()
            tally.tell()


def shapes(cpu: bool) -> list[Shape]:
    if cpu:
        return [Shape(5, 2, 16, 4, 8), Shape(3, 3, 20, 3, 4)]
    return [Shape(2048, 8, 128, 300, 16), Shape(77, 3, 80, 40, 8), Shape(64, 1, 256, 9, 128), Shape(0, 2, 64, 3, 16)]


def copied(op: Op, shape: Shape, dtype: torch.dtype, draw: Draw) -> bool:
    """Keys and values are parts of one projection; the cache is random all over, some tokens are not kept."""
    packed = draw.bytes(shape.tokens, 3 * shape.heads, shape.head_dim, dtype=dtype)
    key, value = packed[:, : shape.heads], packed[:, -shape.heads :]
    cache = draw.bytes(shape.blocks, 2, shape.heads, shape.block_tokens, shape.head_dim, dtype=dtype)
    slots = places(shape, draw)
    expected = cache.clone()
    for token, slot in enumerate(slots.tolist()):
        if 0 <= slot < shape.blocks * shape.block_tokens:
            block, offset = divmod(slot, shape.block_tokens)
            expected[block, 0, :, offset], expected[block, 1, :, offset] = key[token], value[token]
    op(key, value, cache, slots, None, None)
    return same(cache, expected)


def places(shape: Shape, draw: Draw) -> Tensor:
    """Distinct slots in no order; every seventh token has none, or one that the cache has not."""
    every = shape.blocks * shape.block_tokens
    slots = draw.some(shape.tokens, max(every, shape.tokens))
    slots[::7] = torch.where(slots[::7] % 2 == 0, -1, every + slots[::7])
    return slots


def encoded(op: Op, shape: Shape, source: torch.dtype, dtype: torch.dtype, draw: Draw) -> float:
    """The largest error of a kept number, in roundings of the format; infinite where something else is wrong."""
    key, value = (3.0 * draw.normal(shape.tokens, shape.heads, shape.head_dim).to(source) for _ in range(2))
    scales = [draw.normal(shape.heads).abs() * 0.05 + 0.002 for _ in range(2)]
    cache = draw.bytes(shape.blocks, 2, shape.heads, shape.block_tokens, shape.head_dim, dtype=dtype)
    before, slots = cache.clone(), places(shape, draw)
    op(key, value, cache, slots, *scales)
    kept = (slots >= 0) & (slots < shape.blocks * shape.block_tokens)
    block, offset = slots[kept] // shape.block_tokens, slots[kept] % shape.block_tokens
    after, worst = cache.view(torch.uint8), 0.0
    for kind, (states, scale) in enumerate(zip((key, value), scales, strict=True)):
        stored = after[block, kind, :, offset].view(dtype).double()
        exact = (states[kept].double() / scale.double()[:, None]).clamp(-_LARGEST[dtype], _LARGEST[dtype])
        # The kernel divides in float32: its rounding comes on top of the format's own.
        rounding = (exact.abs() * 2.0 ** -(_MANTISSA[dtype] + 1)).clamp(min=_TINY[dtype] / 2) * (1 + 2**-18)
        worst = max(worst, float(((stored - exact).abs() / rounding).nan_to_num(nan=float("inf")).max()))
    untouched = before.view(torch.uint8).clone()
    untouched[block, :, :, offset] = after[block, :, :, offset]
    return worst if same(untouched, after) else float("inf")
