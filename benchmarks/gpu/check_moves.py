"""gather and scatter against indexing, byte by byte: whole blocks, odd sizes, blocks that are not there, headers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu.check import Check
from gpu.ops import Op, operator
from gpu.scenes import DTYPES, POISON, Draw, name_of, same
from gpu.tally import Tally


@dataclass(frozen=True, slots=True)
class Move:
    """A call: `listed` blocks of `shape`, some of which the pool has not; `gap`: bytes before each block of staging."""

    planes: int
    blocks: int
    listed: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    gap: int = 0

    def __str__(self) -> str:
        return f"{self.listed} of {self.planes}×{self.blocks} blocks {self.shape} {name_of(self.dtype)}, gap {self.gap}"


def run(check: Check) -> None:
    for name, to_pool in (("gather", False), ("scatter", True)):
        op = operator(name, check.wrong)
        for dtype in DTYPES:
            tally = Tally(check, f"{name} {name_of(dtype)}")
            draw = Draw(check.seed, check.device)
            for move in moves(dtype, draw, check.cpu):
                if check.left() <= 0:
                    tally.leave_out()
                else:
                    tally.case(right(op, move, draw, to_pool), str(move))
            tally.tell()


def moves(dtype: torch.dtype, draw: Draw, cpu: bool) -> Iterator[Move]:
    """Shapes that a store has, and shapes that it has not."""
    some = draw.number(1, 6)
    if cpu:
        yield Move(2, 7, 4, (2, 2, 8, 16), dtype)
        yield Move(2, 5, some, (2, 1, 3, 5), dtype, gap=128)
        yield Move(1, 4, 0, (2, 1, 8, 16), dtype)
        return
    yield Move(32, 300, 128, (2, 8, 16, 128), dtype)
    yield Move(3, 5000, 2000 + some, (2, 1, 16, 128), dtype)
    yield Move(4, 64, 50, (2, 4, 64, 80), dtype, gap=128)
    yield Move(2, 40, 30 + some, (2, 3, 5, 7), dtype)
    yield Move(1, 9, 1, (1,), dtype)
    yield Move(2, 9, 0, (2, 1, 8, 16), dtype)


def right(op: Op, move: Move, draw: Draw, to_pool: bool) -> bool:
    """Whether both sides are bit for bit what indexing makes of them; what the call must leave alone was poisoned."""
    pool = draw.bytes(move.planes, move.blocks, *move.shape, dtype=move.dtype)
    whole, staging = strided(draw.bytes(move.planes, move.listed, *move.shape, dtype=move.dtype), move.gap)
    blocks = draw.some(move.listed, max(move.listed, move.blocks + 2)) - 1  # -1 and one beyond the pool among them
    expected_pool, expected_staging = pool.clone(), staging.clone()
    for place, block in enumerate(blocks.tolist()):
        if 0 <= block < move.blocks:
            if to_pool:
                expected_pool[:, block] = staging[:, place]
            else:
                expected_staging[:, place] = pool[:, block]
    op(pool, blocks.int(), staging)
    headers = whole[:, :, : move.gap] == POISON
    return same(pool, expected_pool) and same(staging, expected_staging) and bool(headers.all())


def strided(tensor: Tensor, gap: int) -> tuple[Tensor, Tensor]:
    """Bytes with `gap` of them poisoned before each block, as headers in an arena; and the blocks in between."""
    planes, listed = tensor.shape[:2]
    size = tensor[0, 0].numel() * tensor.element_size() if tensor.numel() else 0
    whole = torch.full((planes, listed, gap + size), POISON, dtype=torch.uint8, device=tensor.device)
    if not size:
        return whole, tensor
    whole[:, :, gap:] = tensor.reshape(planes, listed, -1).view(torch.uint8)
    blocks: Tensor = whole.view(tensor.dtype)[:, :, gap // tensor.element_size() :]
    return whole, blocks.unflatten(2, tensor.shape[2:])
