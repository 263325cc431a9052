"""Does the device bitmap keep its promises while many programs take and give back at once?

Every program of one launch takes a random number of slots, marks them as its own in a table of owners, takes the marks
off again and gives the slots back, many times over. Nothing is ordered but by the bitmap's own atomics: a slot that two
programs hold at once is seen by the mark that was there already. Only a GPU runs programs at once: Triton's interpreter
runs one after another and can show that the check works, not that there is no race.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kvstore.errors import BadRequest
from kvstore.kernels.bitmap import FINEST, GROUP, PATIENCE, bitmap_count, new_bitmap
from kvstore.kernels.bitmap.programs import request
from kvstore.kernels.bitmap.state import FAULTS, FREE
from kvstore.kernels.language import jit, launches, on, tl
from kvstore.kernels.variant import Variant

WIDTH = 48
"""Most slots of a request: over a word, so that runs are claimed in several atomics."""
_SHARE = 0.6
"""Slots of the bitmap, as a share of what all programs may want at once: some are refused, and the runs get short."""
_KINDS = ("held by two", "no such slot", "given back twice")


class Contention(NamedTuple):
    """What happened: requests `granted` and `refused`, and how often each promise was broken (empty: never)."""

    granted: int
    refused: int
    violations: dict[str, int]


@jit
def churn(
    words, state, owners, rows, seen, n_words, slots, rounds, seed,
    WIDTH: tl.constexpr, FINEST: tl.constexpr, PATIENCE: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """`rounds` times: take, mark, unmark, give back. `seen`: granted, refused, then the counts of `_KINDS`."""
    mine = rows + tl.program_id(0) * WIDTH
    at = tl.arange(0, BLOCK)
    number = seed + tl.program_id(0) * 7919
    turn = 0
    while turn < rounds:
        number = (number * 1103515245 + 12345) & 0x7FFFFFFF
        want = 1 + (number >> 8) % WIDTH
        taken = request(words, state, want, mine, n_words, slots, WIDTH, FINEST, PATIENCE, BLOCK, GROUP)
        tl.atomic_add(seen + tl.where(taken > 0, 0, 1), 1)
        tl.debug_barrier()  # the row was written by other threads of this program
        held = at < taken
        slot = tl.load(mine + at, mask=held, other=-1, volatile=True)
        there = held & (slot >= 0) & (slot < slots)
        tl.atomic_add(seen + 3, tl.sum((held & (there == 0)).to(tl.int32), 0))
        others = tl.atomic_add(owners + slot, 1, mask=there)
        tl.atomic_add(seen + 2, tl.sum((there & (others != 0)).to(tl.int32), 0))
        tl.atomic_add(owners + slot, -1, mask=there)
        bit = (tl.full([BLOCK], 1, tl.uint32) << (slot & 31).to(tl.uint32)).to(tl.int32, bitcast=True)
        had = tl.atomic_or(words + slot // 32, bit, mask=there)
        tl.atomic_add(seen + 4, tl.sum((there & ((had & bit) != 0)).to(tl.int32), 0))
        tl.debug_barrier()  # every bit is set before anybody is admitted for it
        tl.atomic_add(state, taken)
        turn += 1


def contend(device: torch.device | str, programs: int, rounds: int, seed: int = 1) -> Contention:
    """`programs` programs at once, `rounds` requests each. Raises `BadRequest` where no kernel can be launched."""
    slots = max(33, int(programs * WIDTH * _SHARE))
    words, state = new_bitmap(slots, device)
    if not launches(words):
        raise BadRequest(f"contention on {device}: nothing runs at once there; a CUDA device is needed")
    owners = torch.zeros(slots, dtype=torch.int32, device=words.device)
    seen = run(words, state, owners, programs, rounds, seed)
    return judge(words, state, owners, seen, slots)


def run(words: Tensor, state: Tensor, owners: Tensor, programs: int, rounds: int, seed: int) -> Tensor:
    """One launch over a bitmap of `len(owners)` slots; what the programs saw."""
    rows = torch.full((programs, WIDTH), -1, dtype=torch.int32, device=words.device)
    seen = torch.zeros(2 + len(_KINDS), dtype=torch.int32, device=words.device)
    with on(words):
        churn[(programs,)](
            words, state, owners, rows, seen, len(words), len(owners), rounds, seed,
            WIDTH=WIDTH, FINEST=FINEST, PATIENCE=PATIENCE, BLOCK=64, GROUP=GROUP, num_warps=1,
        )  # fmt: skip
    return seen


def judge(words: Tensor, state: Tensor, owners: Tensor, seen: Tensor, slots: int) -> Contention:
    """What the programs saw, and what they left behind: all free again, counted right, nobody's."""
    granted, refused, *broken = seen.tolist()
    left = state.tolist()
    violations = dict(zip(_KINDS, broken, strict=True))
    violations |= {what: left[place] for what, place in FAULTS.items()}
    violations["lost, by the bits"] = slots - int(bitmap_count(words))
    violations["lost, by the count"] = slots - left[FREE]
    violations["still marked"] = int((owners != 0).sum())
    return Contention(granted, refused, {what: times for what, times in violations.items() if times})


def variants() -> list[Variant]:
    """The check itself: it must be ready to run where it is needed."""
    signature = {"words": "*i32", "state": "*i32", "owners": "*i32", "rows": "*i32", "seen": "*i32"}
    signature |= dict.fromkeys(("n_words", "slots", "rounds", "seed"), "i32")
    fixed = {"WIDTH": WIDTH, "FINEST": FINEST, "PATIENCE": PATIENCE, "BLOCK": 64, "GROUP": GROUP}
    return [Variant("contention", churn, signature | dict.fromkeys(fixed, "constexpr"), fixed, num_warps=1)]
