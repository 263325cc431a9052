"""Episodes: when a condition held, since when, and whether it still does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from playbooks.bench import Answer

# Noise may interrupt a condition for a step or two; it is the same episode when it holds again within this share.
STEADY = 0.75


@dataclass(frozen=True, slots=True)
class Episode:
    """Steps ``first`` to ``last`` (indices); ``present`` when it reaches the end."""

    first: int
    last: int
    present: bool

    @property
    def steps(self) -> int:
        return self.last - self.first + 1


def conjunction(answers: list[NDArray[np.int8]]) -> NDArray[np.int8]:
    """Three-valued and: false wins over unknown, unknown over true."""
    stacked = np.stack(answers)
    out = np.full(stacked.shape[1], Answer.TRUE, dtype=np.int8)
    out[(stacked == Answer.UNKNOWN).any(axis=0)] = Answer.UNKNOWN
    out[(stacked == Answer.FALSE).any(axis=0)] = Answer.FALSE
    return out


def hold_steps(hold_ms: int, step_ms: int, steps: int) -> int:
    """How many of the last steps must agree; a window that is shorter than the hold is all that there is."""
    return max(1, min(steps, hold_ms // step_ms + 1))


def trailing(answers: NDArray[np.int8], need: int) -> Answer:
    """What the last ``need`` steps say: true when it held for most of them and still does."""
    last = answers[-need:]
    fresh = last[-min(3, need) :]
    if (last == Answer.TRUE).mean() >= STEADY and (fresh == Answer.TRUE).any():
        return Answer.TRUE
    if (last == Answer.UNKNOWN).mean() > 1 - STEADY and not (last == Answer.FALSE).mean() > 1 - STEADY:
        return Answer.UNKNOWN
    return Answer.FALSE


def episodes(answers: NDArray[np.int8], need: int) -> list[Episode]:
    """All stretches of at least ``need`` steps in which it held; gaps of one step are bridged."""
    on = answers == Answer.TRUE
    on[1:-1] |= on[:-2] & on[2:]
    found: list[Episode] = []
    first: int | None = None
    for i, held in enumerate([*on.tolist(), False]):
        if held and first is None:
            first = i
        elif not held and first is not None:
            if i - first >= need:
                found.append(Episode(first, i - 1, i >= len(on) - 2))
            first = None
    return found


def first_of_last_run(answers: NDArray[np.int8], before: int) -> int:
    """First step of the run of true answers that is under way at index ``before`` (gaps of two steps bridged)."""
    first = before
    gap = 0
    for i in range(before, -1, -1):
        if answers[i] == Answer.TRUE:
            first, gap = i, 0
        else:
            gap += 1
            if gap > 2:
                break
    return first
