"""Block tables, slot mappings and page tables against the host's own counting."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpu.check import Check
from gpu.ops import Op, operator
from gpu.scenes import Draw, poisoned
from gpu.tally import Tally


class Shape(NamedTuple):
    rows: int
    columns: int
    block_tokens: int


def run(check: Check) -> None:
    shapes = [Shape(5, 7, 4)] if check.cpu else [Shape(64, 512, 16), Shape(1, 8192, 16), Shape(300, 40, 128)]
    for name, right in (("block_table_update", updated), ("token_slots", mapped), ("page_table", listed)):
        op, tally = operator(name, check.wrong), Tally(check, name)
        for shape in shapes:
            for turn in range(2):
                if check.left() > 0:
                    tally.case(right(op, shape, Draw(check.seed + turn, check.device)), str(shape))
                else:
                    tally.leave_out()
        tally.tell()


def updated(op: Op, shape: Shape, draw: Draw) -> bool:
    """A quarter of the cells, and some that the table has not; then runs of cells."""
    table = filled(shape, draw)
    count = max(1, shape.rows * shape.columns // 4)
    cells = draw.some(count, shape.rows * shape.columns)
    rows, columns = (cells // shape.columns).int(), (cells % shape.columns).int()
    rows[::5] = torch.where(cells[::5] % 2 == 0, -1, shape.rows).int()
    values = draw.some(count, 1 << 20).int() - 1
    expected = table.clone()
    for row, column, value in zip(rows.tolist(), columns.tolist(), values.tolist(), strict=True):
        if 0 <= row < shape.rows:
            expected[row, column] = value
    op(table, rows, columns, values)
    if not torch.equal(table, expected):
        return False
    wide = min(3, shape.columns)
    every, at = torch.arange(shape.rows, device=draw.device).int(), shape.columns - wide
    runs = draw.some(shape.rows * wide, 1 << 20).int().reshape(shape.rows, wide)
    expected[:, at:] = runs
    op(table, every, torch.full_like(every, at), runs)
    return torch.equal(table, expected)


def mapped(op: Op, shape: Shape, draw: Draw) -> bool:
    """Decode and prefill in one step: no token, one, some, all of a sequence's; cells without a block or beyond."""
    blocks = shape.rows * shape.columns
    table = filled(shape, draw)
    table[draw.flags(0.1, *shape[:2])] = -1
    table[draw.flags(0.1, *shape[:2])] = blocks
    held = shape.columns * shape.block_tokens
    counts = [min(held, draw.number(0, 3) * draw.number(0, held // 2)) for _ in range(shape.rows)]
    firsts = [draw.number(0, held + 2 - count) for count in counts]
    rows = draw.some(shape.rows, shape.rows).tolist()
    out = torch.full((sum(counts),), 77, dtype=torch.int64, device=draw.device)
    offsets = torch.tensor([0, *counts]).cumsum(0).int().to(draw.device)
    expected = []
    cells = table.tolist()
    for row, first, count in zip(rows, firsts, counts, strict=True):
        for token in range(first, first + count):
            column, at = divmod(token, shape.block_tokens)
            block = cells[row][column] if column < shape.columns else -1
            expected.append(block * shape.block_tokens + at if 0 <= block < blocks else -1)
    given = (ints(rows, draw), ints(firsts, draw), offsets)
    op(table, *given, out, blocks, shape.block_tokens, max(counts))
    return out.tolist() == expected


def listed(op: Op, shape: Shape, draw: Draw) -> bool:
    """Lengths from nothing to all that a row holds."""
    table = filled(shape, draw)
    most = shape.columns * shape.block_tokens
    lengths = [0, most, 1, *draw.numbers(shape.rows, 0, most)][: shape.rows]
    rows = draw.some(shape.rows, shape.rows).tolist()
    pages = [-(-lengths[row] // shape.block_tokens) for row in rows]
    with poisoned():
        indptr = torch.empty(len(rows) + 1, dtype=torch.int32, device=draw.device)
        indices = torch.empty(sum(pages) + 5, dtype=torch.int32, device=draw.device)
        last = torch.empty(len(rows), dtype=torch.int32, device=draw.device)
        behind = indices[sum(pages) :].tolist()
        op(table, ints(lengths, draw), ints(rows, draw), indptr, indices, last, shape.block_tokens)
    cells = table.tolist()
    blocks = [block for row, count in zip(rows, pages, strict=True) for block in cells[row][:count]]
    ends = [lengths[row] - max(count - 1, 0) * shape.block_tokens for row, count in zip(rows, pages, strict=True)]
    starts = [0, *torch.tensor(pages).cumsum(0).tolist()]
    return indptr.tolist() == starts and indices.tolist() == [*blocks, *behind] and last.tolist() == ends


def filled(shape: Shape, draw: Draw) -> Tensor:
    """Every cell a block of its own, in no order."""
    return draw.some(shape.rows * shape.columns, shape.rows * shape.columns).int().reshape(shape.rows, shape.columns)


def ints(values: list[int], draw: Draw) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=draw.device)
