"""Block tables where the kernels read them: batched updates, the slots of tokens, and FlashInfer's page tables.

The host says which rows and how many tokens; which blocks those are it need not know, and never asks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvstore.errors import BadRequest
from kvstore.kernels.checks import require_int32, require_one_device, shapes
from kvstore.kernels.language import jit, launches, on, tl
from kvstore.kernels.variant import Variant

_CELLS = 128
"""Cells, tokens or pages that a program handles at once: one a thread."""


@jit(unspecialised=("cells", "width"))
def update_cells(table, rows, columns, values, cells, width, n_rows, n_columns, BLOCK: tl.constexpr):
    """Cell i of the list, `values[i]`, belongs at `columns[i // width] + i % width` of row `rows[i // width]`."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < cells
    entry = at // width
    row = tl.load(rows + entry, mask=inside, other=-1)
    column = tl.load(columns + entry, mask=inside, other=-1) + at % width
    value = tl.load(values + at, mask=inside, other=-1)
    there = (row >= 0) & (row < n_rows) & (column >= 0) & (column < n_columns)
    tl.store(table + row.to(tl.int64) * n_columns + column, value, mask=inside & there)


@jit(unspecialised=("room",))
def slots_of_tokens(
    table, rows, firsts, offsets, out, n_rows, n_columns, blocks, room,
    BLOCK_TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Tokens `program_id(1) * BLOCK …` of sequence `program_id(0)`: -1 where the table has no block for one."""
    sequence = tl.program_id(0)
    begin = tl.load(offsets + sequence)
    end = tl.load(offsets + sequence + 1)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < end - begin
    row = tl.load(rows + sequence)
    token = tl.load(firsts + sequence) + at
    column = token // BLOCK_TOKENS
    there = tl.where((row >= 0) & (row < n_rows), n_columns, 0)
    known = inside & (token >= 0) & (column < there)
    block = tl.load(table + row.to(tl.int64) * n_columns + column, mask=known, other=-1).to(tl.int64)
    slot = block * BLOCK_TOKENS + token % BLOCK_TOKENS
    slot = tl.where((block >= 0) & (block < blocks), slot, -1)
    tl.store(out + begin + at, slot, mask=inside & (begin + at >= 0) & (begin + at < room))


@jit(unspecialised=("batch", "room"))
def list_pages(
    table, lengths, rows, indptr, indices, last_page_len, batch, n_columns, room,
    BLOCK_TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A sequence a program. Each adds up the pages of those before it: for a batch that is less work than a second
    launch."""
    sequence = tl.program_id(0)
    before = tl.zeros([BLOCK], tl.int32)
    other = tl.arange(0, BLOCK)
    while tl.min(other, 0) < sequence:
        row = tl.load(rows + other, mask=other < sequence, other=0)
        length = tl.load(lengths + row, mask=other < sequence, other=0)
        before += (length + BLOCK_TOKENS - 1) // BLOCK_TOKENS
        other += BLOCK
    begin = tl.sum(before, 0)
    row = tl.load(rows + sequence)
    length = tl.load(lengths + row)
    pages = (length + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    tl.store(indptr + sequence, begin)
    tl.store(last_page_len + sequence, length - tl.maximum(pages - 1, 0) * BLOCK_TOKENS)
    if sequence == batch - 1:
        tl.store(indptr + batch, begin + pages)
    page = tl.arange(0, BLOCK)
    while tl.min(page, 0) < pages:
        inside = (page < pages) & (page < n_columns)
        block = tl.load(table + row.to(tl.int64) * n_columns + page, mask=inside, other=-1)
        tl.store(indices + begin + page, block, mask=(page < pages) & (begin + page < room))
        page += BLOCK


def block_table_update_reference(table: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> None:
    """As `block_table_update`."""
    values = values if values.dim() == 2 else values[:, None]
    row = rows[:, None].expand(values.shape).long()
    column = columns[:, None].long() + torch.arange(values.shape[1], device=values.device)
    there = (row >= 0) & (row < table.shape[0]) & (column >= 0) & (column < table.shape[1])
    table[row[there], column[there]] = values[there]


def token_slots_reference(
    table: Tensor, rows: Tensor, firsts: Tensor, offsets: Tensor, out: Tensor, blocks: int, block_tokens: int, most: int
) -> None:
    """As `token_slots`."""
    bounds = offsets.tolist()
    for row, first, begin, end in zip(rows.tolist(), firsts.tolist(), bounds, bounds[1:], strict=False):
        token = torch.arange(first, first + end - begin, device=table.device)
        column = token // block_tokens
        known = (token >= 0) & (column < table.shape[1])
        block = torch.full_like(token, -1)
        if 0 <= row < table.shape[0]:
            block[known] = table[row, column[known]].long()
        slot = block * block_tokens + token % block_tokens
        place = torch.arange(begin, begin + len(token), device=table.device)
        fits = (place >= 0) & (place < len(out))
        out[place[fits]] = torch.where((block >= 0) & (block < blocks), slot, -1)[fits]


def page_table_reference(
    table: Tensor,
    lengths: Tensor,
    rows: Tensor,
    indptr: Tensor,
    indices: Tensor,
    last_page_len: Tensor,
    block_tokens: int,
) -> None:
    """As `page_table`."""
    pages = (lengths[rows.long()] + block_tokens - 1) // block_tokens
    indptr[0] = 0
    indptr[1:] = pages.cumsum(0)
    last_page_len.copy_(lengths[rows.long()] - (pages - 1).clamp(min=0) * block_tokens)
    listed = [table[row, :count] for row, count in zip(rows.tolist(), pages.tolist(), strict=True)]
    together = torch.cat(listed)[: len(indices)] if listed else indices[:0]
    indices[: len(together)] = together


@torch.library.custom_op("kvscope::block_table_update", mutates_args={"table"})
def block_table_update(table: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> None:
    """`table[rows[i], columns[i] + j] = values[i, j]`, in one launch; all int32.

    `rows`, `columns` `[m]`, `values` `[m]` or `[m, width]`; the cells are distinct. Cells that the table has not are
    skipped. A value of -1 empties its cell.
    """
    require_int32(table=table, rows=rows, columns=columns, values=values)
    fitting = columns.shape == rows.shape == values.shape[:1]
    if table.dim() != 2 or rows.dim() != 1 or not fitting or values.dim() > 2:
        raise BadRequest(f"{shapes(table=table, rows=rows, columns=columns, values=values)} do not go together")
    if not launches(table):
        block_table_update_reference(table, rows, columns, values)
    elif values.numel():
        width = values.numel() // len(rows)
        with on(table):
            update_cells[(-(-values.numel() // _CELLS),)](
                table, rows, columns, values, values.numel(), width, *table.shape, BLOCK=_CELLS, num_warps=4
            )


@block_table_update.register_fake
def _(table: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> None:
    return None


@torch.library.custom_op("kvscope::token_slots", mutates_args={"out"})
def token_slots(
    table: Tensor, rows: Tensor, firsts: Tensor, offsets: Tensor, out: Tensor, blocks: int, block_tokens: int, most: int
) -> None:
    """The slot mapping of a step: `out[offsets[i] + j]` is the slot of token `firsts[i] + j` of row `rows[i]`, else -1.

    `table`, `rows` `[b]`, `firsts` `[b]`, `offsets` `[b + 1]` int32, `out` int64 `[tokens]`, all contiguous; `blocks`
    of the pool; no sequence has more than `most` tokens in the step. A row that the table has not has no blocks;
    tokens that `out` has no place for are left out.
    """
    require_int32(table=table, rows=rows, firsts=firsts, offsets=offsets)
    require_one_device(table=table, out=out)
    _require_block_tokens(block_tokens)
    if table.dim() != 2 or rows.dim() != 1 or firsts.shape != rows.shape or offsets.shape != (len(rows) + 1,):
        raise BadRequest(f"{shapes(table=table, rows=rows, firsts=firsts, offsets=offsets)} do not go together")
    if out.dtype != torch.int64 or out.dim() != 1 or not out.is_contiguous():
        raise BadRequest(
            f"out must be a contiguous int64 [tokens], not {out.dtype} {list(out.shape)}, strides {list(out.stride())}"
        )
    if not launches(table):
        token_slots_reference(table, rows, firsts, offsets, out, blocks, block_tokens, most)
    elif len(rows) and most:
        with on(table):
            slots_of_tokens[(len(rows), -(-most // _CELLS))](
                table, rows, firsts, offsets, out, *table.shape, blocks, len(out),
                BLOCK_TOKENS=block_tokens, BLOCK=_CELLS, num_warps=4,
            )  # fmt: skip


@token_slots.register_fake
def _(
    table: Tensor, rows: Tensor, firsts: Tensor, offsets: Tensor, out: Tensor, blocks: int, block_tokens: int, most: int
) -> None:
    return None


@torch.library.custom_op("kvscope::page_table", mutates_args={"indptr", "indices", "last_page_len"})
def page_table(
    table: Tensor,
    lengths: Tensor,
    rows: Tensor,
    indptr: Tensor,
    indices: Tensor,
    last_page_len: Tensor,
    block_tokens: int,
) -> None:
    """FlashInfer's page table of the batch `rows` `[b]` (see `kvstore.table.Csr`), built where it is read; all int32.

    `lengths` `[table rows]` tokens of each row. Fills `indptr` `[b + 1]`, `last_page_len` `[b]` and the first pages of
    `indices`; pages that it has no room for are left out, what lies behind the last page stays as it was. The rows
    exist, and no row has more tokens than its columns hold.
    """
    named = {"table": table, "lengths": lengths, "rows": rows, "indptr": indptr, "indices": indices}
    named["last_page_len"] = last_page_len
    require_int32(**named)
    _require_block_tokens(block_tokens)
    flat = table.dim() == 2 and rows.dim() == 1 and indices.dim() == 1 and lengths.shape == table.shape[:1]
    if not flat or indptr.shape != (len(rows) + 1,) or last_page_len.shape != rows.shape:
        raise BadRequest(f"{shapes(**named)} do not go together")
    if not len(rows):
        indptr.zero_()
    elif not launches(table):
        page_table_reference(table, lengths, rows, indptr, indices, last_page_len, block_tokens)
    else:
        with on(table):
            list_pages[(len(rows),)](
                table, lengths, rows, indptr, indices, last_page_len, len(rows), table.shape[1], len(indices),
                BLOCK_TOKENS=block_tokens, BLOCK=_CELLS, num_warps=4,
            )  # fmt: skip


@page_table.register_fake
def _(
    table: Tensor,
    lengths: Tensor,
    rows: Tensor,
    indptr: Tensor,
    indices: Tensor,
    last_page_len: Tensor,
    block_tokens: int,
) -> None:
    return None


def _require_block_tokens(block_tokens: int) -> None:
    if block_tokens < 1:
        raise BadRequest(f"blocks of {block_tokens} tokens cannot be: 1 or more, please")


def variants() -> list[Variant]:
    """One of each."""
    table = {"table": "*i32", "rows": "*i32"}
    sizes = {"n_rows": "i32", "n_columns": "i32"}
    update = table | {"columns": "*i32", "values": "*i32", "cells": "i32", "width": "i32"} | sizes
    slots = table | {"firsts": "*i32", "offsets": "*i32", "out": "*i64"} | sizes | {"blocks": "i32", "room": "i32"}
    pages = {"table": "*i32", "lengths": "*i32", "rows": "*i32", "indptr": "*i32", "indices": "*i32"}
    pages |= {"last_page_len": "*i32", "batch": "i32", "n_columns": "i32", "room": "i32"}
    fixed = {"BLOCK_TOKENS": 16, "BLOCK": _CELLS}
    both = dict.fromkeys(fixed, "constexpr")
    return [
        Variant("block_table_update", update_cells, update | {"BLOCK": "constexpr"}, {"BLOCK": _CELLS}),
        Variant("token_slots", slots_of_tokens, slots | both, fixed),
        Variant("page_table", list_pages, pages | both, fixed),
    ]
