"""The check of the allocator under contention: that it runs clean, and that it sees what is broken."""

from __future__ import annotations

from tests.kernels.kernel_rig import DEVICE, torch

from kvstore.kernels.bitmap import new_bitmap  # isort: skip
from kvstore.kernels.bitmap.state import FREE  # isort: skip
from kvstore.kernels.contention import contend, judge, run  # isort: skip

PROGRAMS, ROUNDS = (256, 100) if DEVICE == "cuda" else (2, 2)


def test_no_slot_is_held_twice_or_lost() -> None:
    found = contend(DEVICE, PROGRAMS, ROUNDS)
    assert found.violations == {}
    assert found.granted + found.refused == PROGRAMS * ROUNDS
    assert found.granted > 0


def test_a_slot_that_somebody_else_holds_is_seen() -> None:
    words, state = new_bitmap(64, DEVICE)
    owners = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    owners[:] = 1
    seen = run(words, state, owners, 1, 1, seed=1)
    found = judge(words, state, owners, seen, 64).violations
    assert found.pop("held by two") > 0
    assert found == {"still marked": 64}


def test_slots_that_get_lost_are_seen() -> None:
    words, state = new_bitmap(64, DEVICE)
    owners = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    words[1] &= ~(1 << 5)
    state[FREE] -= 2
    seen = run(words, state, owners, 1, 1, seed=1)
    assert judge(words, state, owners, seen, 64).violations == {"lost, by the bits": 1, "lost, by the count": 2}
