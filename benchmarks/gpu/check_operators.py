"""The operators as PyTorch sees them: schema, fake implementation, tracing (`torch.library.opcheck`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpu.check import Check
from gpu.ops import operator
from gpu.paged import Heads, scene
from gpu.rows import one_line
from gpu.scenes import Draw


def run(check: Check) -> None:
    calls = samples(Draw(check.seed, check.device))
    for name, sample in calls.items():
        if check.left() <= 0:
            check.unfinished(f"opcheck {name}")
            continue
        try:
            op: Any = operator(name)
            torch.library.opcheck(op, sample())
        except Exception as error:
            check.wrong_number(f"opcheck {name}", one_line(error))
        else:
            check.right(f"opcheck {name}", None)


def samples(draw: Draw) -> dict[str, Callable[[], tuple[Any, ...]]]:
    """Small arguments for each. One request only for the allocator: with several its answer may differ each time."""
    from kvstore.kernels.bitmap import new_bitmap

    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=draw.device)

    def full(*shape: int) -> torch.Tensor:
        return torch.full(shape, -1, dtype=torch.int32, device=draw.device)

    def moved() -> tuple[Any, ...]:
        return draw.normal(2, 6, 2, 2, 8, 16), ints(3, 1, -1), draw.normal(2, 3, 2, 2, 8, 16)

    def appended() -> tuple[Any, ...]:
        slots = torch.tensor([3, -1, 12], device=draw.device)
        return draw.normal(3, 2, 16), draw.normal(3, 2, 16), draw.normal(4, 2, 2, 8, 16), slots, None, None

    def decoded() -> tuple[Any, ...]:
        given = scene(draw, [5, 16], Heads(4, 2, 32), dtype=torch.float16)
        tables = given.tables.where(given.tables < 1 << 20, -1)
        return given.query, given.keys, given.values, tables, given.lengths, given.scale

    words, state = new_bitmap(64, draw.device)
    table, outs = full(4, 6).fill_(1), (full(3), full(9), full(2))
    slots = torch.zeros(3, dtype=torch.int64, device=draw.device)
    return {
        "gather": moved,
        "scatter": moved,
        "append": appended,
        "paged_decode": decoded,
        "bitmap_allocate": lambda: (words.clone(), state.clone(), ints(9), full(1, 9), 64),
        "bitmap_free": lambda: (words.clone(), state.clone(), ints(3, -1), 64),
        "bitmap_count": lambda: (words,),
        "block_table_update": lambda: (full(4, 6), ints(1, 9), ints(2, 0), ints(5, 6)),
        "token_slots": lambda: (table, ints(1, 0), ints(3, 0), ints(0, 2, 3), slots, 24, 4, 2),
        "page_table": lambda: (table, ints(1, 4, 9, 0), ints(2, 1), *outs, 4),
    }
