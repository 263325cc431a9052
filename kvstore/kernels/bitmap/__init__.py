"""Which blocks are free, on the device: packed 32-bit words, claimed with atomics, never read by the host.

A set bit is a free slot; `state` `[STATE_WORDS]` int32 counts (`state.py`). An allocation takes one run if there is
one, else runs of half as many and so on down to 8 slots, then single slots. It gives a request all that it asked for or
nothing, however many programs allocate and free at once: the free count is lowered in one step before a bit is touched.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvstore.errors import BadRequest
from kvstore.kernels.bitmap import programs
from kvstore.kernels.bitmap.reference import (
    bitmap_allocate_reference,
    bitmap_count_reference,
    bitmap_free_reference,
)
from kvstore.kernels.bitmap.state import FREE, STATE_WORDS
from kvstore.kernels.checks import require_int32
from kvstore.kernels.language import launches, on, power_of_two
from kvstore.kernels.variant import Variant

FINEST = 8
"""Shortest run that is looked for; below it, single slots."""
PATIENCE = 1024
"""Rounds over the bitmap without a single slot after which a request gives up what it was admitted for."""
GROUP = 32
"""Words that are claimed at once: one a thread."""
MOST_SLOTS = 2**30 - 1
"""Of a bitmap: sums of two of its slots are still int32."""
_FREE_BLOCK = 256
_COUNT_BLOCK = 1024

__all__ = [
    "FINEST",
    "GROUP",
    "PATIENCE",
    "bitmap_allocate",
    "bitmap_allocate_reference",
    "bitmap_count",
    "bitmap_count_reference",
    "bitmap_free",
    "bitmap_free_reference",
    "new_bitmap",
    "variants",
]


def new_bitmap(slots: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """`words` `[ceil(slots / 32)]` and `state` `[STATE_WORDS]` int32 of a bitmap whose `slots` are all free."""
    if not 0 < slots <= MOST_SLOTS:
        raise BadRequest(f"a bitmap of {slots} slots cannot be: 1 to {MOST_SLOTS}, please")
    words = torch.full((-(-slots // 32),), -1, dtype=torch.int32)
    if slots % 32:
        words[-1] = (1 << slots % 32) - 1
    state = torch.zeros(STATE_WORDS, dtype=torch.int32)
    state[FREE] = slots
    return words.to(device), state.to(device)


@torch.library.custom_op("kvscope::bitmap_allocate", mutates_args={"words", "state", "out"})
def bitmap_allocate(words: Tensor, state: Tensor, counts: Tensor, out: Tensor, slots: int) -> None:
    """`counts` `[r]` slots for r requests, into the rows of `out` `[r, width]`; -1 behind them, only -1 if refused.

    All int32 and contiguous; `slots` is how many the bitmap has. A request for 0 gets nothing and is not refused.
    """
    require_int32(words=words, state=state, counts=counts, out=out)
    _require_bitmap(words, state, slots)
    if out.dim() != 2 or counts.shape != out.shape[:1]:
        raise BadRequest(f"{tuple(counts.shape)} counts do not go with an answer of {tuple(out.shape)}")
    if not launches(words):
        bitmap_allocate_reference(words, state, counts, out, slots, FINEST)
    elif len(counts):
        block = min(max(power_of_two(len(words)), GROUP), 256)
        with on(words):
            programs.allocate[(len(counts),)](
                words, state, counts, out, len(words), slots, out.shape[1],
                FINEST=FINEST, PATIENCE=PATIENCE, BLOCK=block, GROUP=GROUP, num_warps=1,
            )  # fmt: skip


@bitmap_allocate.register_fake
def _(words: Tensor, state: Tensor, counts: Tensor, out: Tensor, slots: int) -> None:
    return None


@torch.library.custom_op("kvscope::bitmap_free", mutates_args={"words", "state"})
def bitmap_free(words: Tensor, state: Tensor, slots: Tensor, total: int) -> None:
    """`slots` (any shape, int32; below 0: skipped) of the bitmap's `total` are free again."""
    require_int32(words=words, state=state, slots=slots)
    _require_bitmap(words, state, total)
    if not launches(words):
        bitmap_free_reference(words, state, slots, total)
    elif slots.numel():
        grid = (-(-slots.numel() // _FREE_BLOCK),)
        with on(words):
            programs.release[grid](words, state, slots, slots.numel(), total, BLOCK=_FREE_BLOCK, num_warps=4)


@bitmap_free.register_fake
def _(words: Tensor, state: Tensor, slots: Tensor, total: int) -> None:
    return None


@torch.library.custom_op("kvscope::bitmap_count", mutates_args=())
def bitmap_count(words: Tensor) -> Tensor:
    """`[1]` int32: the free slots, by the bits themselves."""
    require_int32(words=words)
    if words.dim() != 1:
        raise BadRequest(f"words must be flat, not {list(words.shape)}")
    if not launches(words):
        return bitmap_count_reference(words)
    out = torch.zeros(1, dtype=torch.int32, device=words.device)
    with on(words):
        programs.count[(-(-len(words) // _COUNT_BLOCK),)](words, out, len(words), BLOCK=_COUNT_BLOCK, num_warps=4)
    return out


@bitmap_count.register_fake
def _(words: Tensor) -> Tensor:
    return words.new_empty(1)


def _require_bitmap(words: Tensor, state: Tensor, slots: int) -> None:
    """Raise `BadRequest` where a bitmap of `slots` has not these words: a kernel would set bits behind them."""
    if not 0 < slots <= MOST_SLOTS or words.shape != (-(-slots // 32),) or state.shape != (STATE_WORDS,):
        raise BadRequest(
            f"words {list(words.shape)} and state {list(state.shape)} are no bitmap of {slots} slots: "
            f"it has [ceil(slots / 32)] and [{STATE_WORDS}]"
        )


def variants() -> list[Variant]:
    """Allocating, freeing, counting."""
    words = {"words": "*i32", "state": "*i32"}
    sizes = dict.fromkeys(("n_words", "slots", "width"), "i32") | dict.fromkeys(
        ("FINEST", "PATIENCE", "BLOCK", "GROUP"), "constexpr"
    )
    fixed = {"FINEST": FINEST, "PATIENCE": PATIENCE, "BLOCK": 256, "GROUP": GROUP}
    allocate = words | {"counts": "*i32", "out": "*i32"} | sizes
    release = words | {"slots": "*i32", "n": "i32", "total": "i32", "BLOCK": "constexpr"}
    count = {"words": "*i32", "out": "*i32", "n_words": "i32", "BLOCK": "constexpr"}
    return [
        Variant("bitmap_allocate", programs.allocate, allocate, fixed, num_warps=1),
        Variant("bitmap_free", programs.release, release, {"BLOCK": _FREE_BLOCK}),
        Variant("bitmap_count", programs.count, count, {"BLOCK": _COUNT_BLOCK}),
    ]
