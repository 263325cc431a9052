"""Slots on two sides of a copy, as the runs that it is made of."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.int64]


def pieces(source: Slots, target: Slots) -> list[tuple[int, int, int]]:
    """`(source start, target start, length)` of the longest pieces that are consecutive on both sides."""
    if not len(source):
        return []
    breaks = np.flatnonzero((np.diff(source) != 1) | (np.diff(target) != 1)) + 1
    firsts = np.concatenate([[0], breaks])
    lengths = np.diff(np.concatenate([firsts, [len(source)]]))
    return list(zip(source[firsts].tolist(), target[firsts].tolist(), lengths.tolist(), strict=True))
