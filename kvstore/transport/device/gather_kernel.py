"""The kernel of `gather.py`. Importing this loads torch and triton."""

from __future__ import annotations

from typing import Any

from kvstore.kernels.language import jit, tl

CHUNK = 2048
"""Units that a program copies: four loads of 16 bytes a thread under way at once with four warps."""


@jit
def copy_blocks(to, source, places, slots, units, chunks, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Chunk `program_id(0) % chunks` of item `program_id(0) // chunks`: block `slots[item]` of `source` to block
    `places[item]` of `to`; a block has `units` units of 32 bits."""
    item = tl.program_id(0) // chunks
    at = (tl.program_id(0) % chunks) * CHUNK + tl.arange(0, CHUNK)
    inside = at < units
    origin = tl.load(slots + item) * units
    place = tl.load(places + item) * units
    tl.store(to + place + at, tl.load(source + origin + at, mask=inside), mask=inside)


def launch(to: Any, source: Any, places: Any, slots: Any, units: int) -> None:
    """Copy one block a row of `places` and `slots` (int64 tensors); `to`, `source`: tensors of int32, or pointers."""
    chunks = -(-units // CHUNK)
    copy_blocks[(len(places) * chunks,)](to, source, places, slots, units, chunks, CHUNK=CHUNK, num_warps=4)
