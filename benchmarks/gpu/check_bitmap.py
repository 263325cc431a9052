"""The device bitmap: what it promises whoever comes when; and whether it keeps that while many come at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu.check import Check
from gpu.ops import Op, operator
from gpu.scenes import Draw
from gpu.tally import Tally


@dataclass(frozen=True, slots=True)
class Trial:
    """A bitmap of `slots`, that share of them free, and so many requests at once."""

    slots: int
    share: float
    requests: int

    @property
    def most(self) -> int:
        """Slots of a request: all together may ask for about as many as there are."""
        return min(4096, max(2, int(self.slots * self.share) * 2 // self.requests))

    def __str__(self) -> str:
        return f"{self.requests} requests, {self.slots} slots, {self.share:.0%} free"


def run(check: Check) -> None:
    ops = {name: operator(name, check.wrong) for name in ("bitmap_count", "bitmap_allocate", "bitmap_free")}
    tallies = [Tally(check, name) for name in ops]
    for trial in trials(check.cpu):
        if check.left() > 0:
            promises(ops, trial, Draw(check.seed + trial.slots, check.device), tallies)
        else:
            for tally in tallies:
                tally.leave_out()
    for tally in tallies:
        tally.tell()
    contended(check)


def trials(cpu: bool) -> list[Trial]:
    if cpu:
        return [Trial(95, 1.0, 5), Trial(300, 0.5, 5)]
    return [Trial(slots, share, 24) for slots in (31, 2000, 100_000, 1 << 20) for share in (0.0, 0.4, 0.9, 1.0)]


def promises(ops: dict[str, Op], trial: Trial, draw: Draw, tallies: list[Tally]) -> None:
    """Count, take, take again, give the last ones back: no slot twice, none lost, all or nothing."""
    from kvstore.kernels.bitmap import new_bitmap
    from kvstore.kernels.bitmap.reference import pack, unpack
    from kvstore.kernels.bitmap.state import FAULTS, FREE

    counted, given, freed = tallies
    slots = trial.slots
    free = draw.flags(trial.share, slots).cpu()
    words, state = new_bitmap(slots, draw.device)
    words = pack(torch.nn.functional.pad(free, (0, 32 * len(words) - slots))).to(draw.device)
    state[FREE] = int(free.sum())

    def as_counted() -> bool:
        return torch.equal(unpack(words.cpu())[:slots], free) and int(state[FREE]) == int(free.sum())

    counted.case(int(ops["bitmap_count"](words)) == int(free.sum()), str(trial))
    for turn in range(2):
        asked = draw.numbers(trial.requests, 0, trial.most)
        counts = torch.tensor(asked, dtype=torch.int32, device=draw.device)
        out = torch.full((len(asked), max(1, *asked)), 77, dtype=torch.int32, device=draw.device)
        ops["bitmap_allocate"](words, state, counts, out, slots)
        right = as_promised(out, asked, free)
        taken = out[(out >= 0) & (out < slots)].long().cpu()
        free[taken] = False
        given.case(right and as_counted(), f"{trial}, turn {turn}")
    ops["bitmap_free"](words, state, out, slots)
    free[taken] = True
    broken = {name for name, place in FAULTS.items() if int(state[place])}
    freed.case(as_counted() and not broken, f"{trial} {sorted(broken)}")


def as_promised(out: Tensor, asked: list[int], free: Tensor) -> bool:
    """All or nothing for each, every slot free before and given once, and nobody refused who could be served."""
    rows, was_free = out.tolist(), free.tolist()
    taken = [slot for row in rows for slot in row if slot != -1]
    if len(set(taken)) != len(taken) or any(not 0 <= slot < len(was_free) or not was_free[slot] for slot in taken):
        return False
    served = [sum(slot != -1 for slot in row) for row in rows]
    if any(got not in (0, want) for got, want in zip(served, asked, strict=True)):
        return False
    left = sum(was_free) - len(taken)
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
            check.unfinished(f"allocator, {programs} at once")
            continue
        found = contend("cuda", programs, rounds, seed=check.seed % (1 << 20))
        told = f"{found.granted} granted, {found.refused} refused"
        _tell(check, f"allocator, {programs} at once", found.violations, told)


def _tell(check: Check, name: str, violations: dict[str, int], told: str) -> None:
    if violations:
        check.wrong_number(name, f"{violations}; {told}", sum(violations.values()), "violations")
    else:
        check.right(name, 0, "violations", told)
