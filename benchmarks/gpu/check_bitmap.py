"""The device bitmap: what it promises whoever comes when; and whether it keeps that while many come at once."""

from __future__ import annotations

import torch
from torch import Tensor

from gpu.check import Check
from gpu.ops import Op, operator
from gpu.scenes import Draw
from gpu.tally import Tally


def run(check: Check) -> None:
    ops = {name: operator(name, check.wrong) for name in ("bitmap_allocate", "bitmap_free", "bitmap_count")}
    counted, given, freed = (Tally(check, name) for name in ("bitmap_count", "bitmap_allocate", "bitmap_free"))
    sizes = (95, 700) if check.cpu else (31, 2000, 100_000, 1 << 20)
    for slots in sizes:
        for share in (0.0, 0.4, 0.9, 1.0):
            draw = Draw(check.seed + slots, check.device)
            what = f"{slots} slots, {share:.0%} free"
            if check.left() > 0:
                promises(ops, slots, share, draw, what, (counted, given, freed))
            else:
                for tally in (counted, given, freed):
                    tally.leave_out()
    for tally in (counted, given, freed):
        tally.tell()
    contended(check)


def promises(
    ops: dict[str, Op], slots: int, share: float, draw: Draw, what: str, tallies: tuple[Tally, Tally, Tally]
) -> None:
    """Count, take, take again until nothing is left, give back: no slot twice, none lost, all or nothing."""
    from kvstore.kernels.bitmap import new_bitmap
    from kvstore.kernels.bitmap.reference import pack, unpack
    from kvstore.kernels.bitmap.state import FAULTS, FREE

    counted, given, freed = tallies
    free = draw.flags(share, slots).cpu()
    words, state = new_bitmap(slots, draw.device)
    words = pack(torch.nn.functional.pad(free, (0, 32 * len(words) - slots))).to(draw.device)
    state[FREE] = int(free.sum())
    counted.case(int(ops["bitmap_count"](words)) == int(free.sum()), what)
    for turn in range(2):
        asked = draw.numbers(24, 0, min(4096, max(2, int(slots * share) // 16)))
        counts = torch.tensor(asked, dtype=torch.int32, device=draw.device)
        out = torch.full((len(asked), max(1, *asked)), 77, dtype=torch.int32, device=draw.device)
        had = int(state[FREE])
        ops["bitmap_allocate"](words, state, counts, out, slots)
        right = _as_promised(out, asked, free, had)
        taken = out[out >= 0].long().cpu()
        free[taken[taken < slots]] = False
        right &= torch.equal(unpack(words.cpu())[:slots], free) and int(state[FREE]) == int(free.sum())
        given.case(right, f"{what}, turn {turn}")
    ops["bitmap_free"](words, state, out, slots)
    free[taken[taken < slots]] = True
    right = torch.equal(unpack(words.cpu())[:slots], free) and int(state[FREE]) == int(free.sum())
    broken = {name for name, place in FAULTS.items() if int(state[place])}
    freed.case(right and not broken, f"{what} {sorted(broken)}")


def _as_promised(out: Tensor, asked: list[int], free: Tensor, had: int) -> bool:
    """All or nothing for each, every slot free before and given once, and nobody refused who could be served."""
    rows = out.tolist()
    taken = [slot for row in rows for slot in row if slot != -1]
    if len(set(taken)) != len(taken) or any(not 0 <= slot < len(free) or not free[slot] for slot in taken):
        return False
    served = [sum(slot != -1 for slot in row) for row in rows]
    if any(got not in (0, want) for got, want in zip(served, asked, strict=True)):
        return False
    left = had - len(taken)
    return all(got or not want or want > left for got, want in zip(served, asked, strict=True))


def contended(check: Check) -> None:
    """Programs that take and give back at once: what only a GPU can show."""
    from kvstore.kernels.contention import contend

    if check.cpu:
        found = contend("cpu", 4, 3, seed=check.seed % 1000)
        told = f"{found.granted} granted, {found.refused} refused; one after another: no race can show"
        _tell(check, "allocator, check of the check", found.violations, told)
        return
    for programs, rounds in ((132, 200), (2112, 100)):
        if check.left() <= 0:
            check.skipped(f"allocator, {programs} at once", "no time was left")
            continue
        found = contend("cuda", programs, rounds, seed=check.seed % (1 << 20))
        told = f"{found.granted} granted, {found.refused} refused"
        _tell(check, f"allocator, {programs} at once", found.violations, told)


def _tell(check: Check, name: str, violations: dict[str, int], told: str) -> None:
    if violations:
        check.wrong_number(name, f"{violations}; {told}", sum(violations.values()), "violations")
    else:
        check.right(name, 0, "violations", told)
