"""What a decode step calls beside attention: microseconds a call from Python, and within a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpu.check import Check
from gpu.clock import Clock
from gpu.ops import operator
from gpu.paged import Heads, scene
from gpu.scenes import Draw

COLUMNS, BLOCK_TOKENS = 512, 16
CALLS, REPLAYS = 200, 9


def run(check: Check) -> None:
    clock, draw = Clock(check), Draw(check.seed, check.device)
    slots = 1024 if check.cpu else 1 << 20
    table = torch.full((batch_of(check), COLUMNS), -1, dtype=torch.int32, device=check.device)
    calls: dict[str, Callable[[], object]] = {}
    calls |= appending(check, draw)
    calls |= tables(check, draw, table)
    calls |= bitmaps(check, draw, slots)
    calls |= attention(check, draw)
    for name, call in calls.items():
        if check.left() <= 0:
            check.skipped(name, "no time was left")
            continue
        call()
        check.measured(name, clock.together(call, 2 if check.cpu else CALLS) * 1e6, "µs a call", "from Python")
        if not check.cpu:
            check.measured(f"{name}, in a graph", clock.captured(call, REPLAYS) * 1e6, "µs a call")
    naive(check, clock, draw, table, slots)


def batch_of(check: Check) -> int:
    """Sequences of a decode step."""
    return 4 if check.cpu else 64


def appending(check: Check, draw: Draw) -> dict[str, Callable[[], object]]:
    """A decode step's new tokens of one layer, as they are and as 8-bit floats."""
    heads, dim = (2, 32) if check.cpu else (8, 128)
    batch = batch_of(check)
    append = operator("append", check.wrong)
    key, value = (draw.normal(batch, heads, dim, dtype=torch.bfloat16) for _ in range(2))
    slots = draw.some(batch, 64 * BLOCK_TOKENS)
    cache = draw.normal(64, 2, heads, BLOCK_TOKENS, dim, dtype=torch.bfloat16)
    small = torch.zeros(cache.shape, dtype=torch.float8_e4m3fn, device=check.device)
    scale = draw.normal(heads).abs() + 0.1
    return {
        f"append of {batch} tokens": lambda: append(key, value, cache, slots, None, None),
        f"append of {batch} tokens as e4m3": lambda: append(key, value, small, slots, scale, scale),
    }


def tables(check: Check, draw: Draw, table: Tensor) -> dict[str, Callable[[], object]]:
    """A block more for every sequence of a batch; its slot mapping; its page table."""
    update, slots_of = operator("block_table_update", check.wrong), operator("token_slots", check.wrong)
    pages, batch = operator("page_table", check.wrong), batch_of(check)
    rows = torch.arange(batch, device=check.device).int()
    columns = draw.some(batch, COLUMNS).int()
    blocks = draw.some(batch, 1 << 16).int()
    firsts, lengths = columns * BLOCK_TOKENS, (columns + 1) * BLOCK_TOKENS
    offsets = torch.arange(batch + 1, device=check.device).int()
    out = torch.empty(batch, dtype=torch.int64, device=check.device)
    indptr, last = (torch.empty(n, dtype=torch.int32, device=check.device) for n in (batch + 1, batch))
    indices = torch.empty(batch * COLUMNS, dtype=torch.int32, device=check.device)
    return {
        f"block_table_update of {batch} cells": lambda: update(table, rows, columns, blocks),
        f"token_slots of {batch} tokens": lambda: slots_of(table, rows, firsts, offsets, out, 1 << 16, BLOCK_TOKENS, 1),
        f"page_table of {batch} sequences": lambda: pages(table, lengths, rows, indptr, indices, last, BLOCK_TOKENS),
    }


def bitmaps(check: Check, draw: Draw, slots: int) -> dict[str, Callable[[], object]]:
    """A block for each of a batch, a window of 32 in one run, and both given back: on a bitmap that is half taken."""
    from kvstore.kernels.bitmap import new_bitmap
    from kvstore.kernels.bitmap.state import FREE

    allocate, free = operator("bitmap_allocate", check.wrong), operator("bitmap_free", check.wrong)
    batch = batch_of(check)
    words, state = new_bitmap(slots, check.device)
    words[draw.some(len(words) // 2, len(words))] = 0  # half of all words: runs of 32 are left, scattered
    state[FREE] = 32 * (len(words) - len(words) // 2)
    found: dict[str, Callable[[], object]] = {}
    for name, requests, count in (("a block for each of", batch, 1), ("a run of 32 for", batch // 4, 32)):
        counts = torch.full((requests,), count, dtype=torch.int32, device=check.device)
        out = torch.empty(requests, count, dtype=torch.int32, device=check.device)

        def call(counts: Tensor = counts, out: Tensor = out) -> None:
            allocate(words, state, counts, out, slots)
            free(words, state, out, slots)

        found[f"bitmap_allocate, {name} {requests}, and bitmap_free"] = call
    return found


def attention(check: Check, draw: Draw) -> dict[str, Callable[[], object]]:
    """One short sequence: what a call costs when there is next to nothing to read."""
    heads = Heads(4, 2, 32) if check.cpu else Heads(32, 8, 128)
    given, op = scene(draw, [40], heads), operator("paged_decode", check.wrong)
    return {
        "paged_decode of one sequence of 40 tokens": lambda: op(
            given.query, given.keys, given.values, given.tables, given.lengths, given.scale
        )
    }


def naive(check: Check, clock: Clock, draw: Draw, table: Tensor, slots: int) -> None:
    """The textbook mistakes, for comparison: booleans read by the host, and a cell an upload."""
    flags = torch.rand(slots, device=check.device) < 0.5
    batch = batch_of(check)
    columns = draw.some(batch, COLUMNS).tolist()

    def allocate() -> list[int]:
        taken: list[int] = flags.nonzero()[:batch, 0].tolist()
        return taken

    def upload() -> None:
        for row, column in enumerate(columns):
            table[row, column] = torch.tensor(row, dtype=torch.int32).to(table.device)

    for name, call in (
        (f"naive: {batch} of {slots} booleans, by the host", allocate),
        (f"naive: {batch} uploads", upload),
    ):
        if check.left() > 0:
            call()
            check.measured(name, clock.together(call, 2 if check.cpu else 20) * 1e6, "µs a call", "from Python")
        else:
            check.skipped(name, "no time was left")
