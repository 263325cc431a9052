"""Values that stand for "no value": what a source says where it has none, kept from looking like a measurement."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from probes.columns import Floats, Mask, Times
from probes.labels import Labels

DCGM = "DCGM_FI_"
DCGM_BLANK_64 = float(0x7FFFFFFFFFFFFFF0)
"""First of DCGM's 64-bit blanks (dcgm_structs.h: …F0 blank, F1 not found, F2 not supported, F3 not permitted).

As float64 all of them are 2**63; no field of DCGM counts that far.
"""
DCGM_BLANK_32 = tuple(float(0x7FFFFFF0 + n) for n in range(4))
"""The same four in 32 bits, 2147483632 to 2147483635."""
DCGM_BLANK_FP = 140737488355328.0
"""First of the four blanks of DCGM's float fields, 2**47 to 2**47 + 3."""
_RATIO = re.compile(r"DCGM_FI_PROF_\w*(?:ACTIVE|OCCUPANCY|RATIO)")
RATIO_MOST = 1.5
"""A profiling ratio above this is no reading (policy: 1 is the most there can be; sampling overshoots a little)."""


_COUNTED = re.compile(r".*_(?:total|bucket|count)|process_start_time_seconds")
"""Names of what is counted (or never moves): NaN is no count, and must look neither like a reset nor like a restart."""


class Blanks:
    """Which of a list of series can be blank, found once; then which of their samples are."""

    def __init__(self, labels: Sequence[Labels]) -> None:
        names = [one.name for one in labels]
        told = {name: _kind(name) for name in dict.fromkeys(names)}
        kinds: Mask = np.array([told[name] for name in names], dtype=np.bool_).reshape(len(names), 3)
        self._can, self._ratio, self._counted = kinds[:, 0].copy(), kinds[:, 1].copy(), kinds[:, 2].copy()
        self._any = bool(self._can.any())

    def among(self, series: Times, values: Floats) -> Mask:
        """Where samples are no measurement: sample i is ``values[i]`` of the series at place ``series[i]``."""
        found: Mask = np.isnan(values)
        if found.any():
            found &= self._counted[series]
        if not self._any:
            return found
        held = np.flatnonzero(self._can[series])
        given = values[held]
        floating = (given >= DCGM_BLANK_FP) & (given <= DCGM_BLANK_FP + 3)
        blank = (given >= DCGM_BLANK_64) | np.isin(given, DCGM_BLANK_32) | floating
        blank |= self._ratio[series[held]] & ((given > RATIO_MOST) | (given < 0))
        found[held] |= blank
        return found


def _kind(name: str) -> tuple[bool, bool, bool]:
    """Whether a series of this name can have DCGM's blanks, is a ratio, is counted."""
    return name.startswith(DCGM), _RATIO.fullmatch(name) is not None, _COUNTED.fullmatch(name) is not None
