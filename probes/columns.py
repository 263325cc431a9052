"""Columns of samples: the NaN payloads, and sealed blocks in which a constant series costs one value."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Times: TypeAlias = NDArray[np.int64]
Rows: TypeAlias = NDArray[np.intp]
Mask: TypeAlias = NDArray[np.bool_]

STALE_BITS: Final = 0x7FF0000000000002
"""Prometheus' staleness marker (model/value/value.go, StaleNaN)."""
ABSENT_BITS: Final = 0x7FF800004B560001
"""Ours: no sample here. Any other NaN is a value that a source sent."""

STALE: Final = np.array(STALE_BITS, dtype=np.int64).view(np.float64)[()]
ABSENT: Final = np.array(ABSENT_BITS, dtype=np.int64).view(np.float64)[()]

_STALE_ARRAY: Final = np.array([STALE_BITS], dtype=np.int64).view(np.float64)
_ABSENT_ARRAY: Final = np.array([ABSENT_BITS], dtype=np.int64).view(np.float64)


def is_stale(values: Floats) -> Mask:
    """Where ``values`` (any shape) hold a staleness marker."""
    found: Mask = np.ascontiguousarray(values).view(np.int64) == STALE_BITS
    return found


def is_absent(values: Floats) -> Mask:
    """Where ``values`` (any shape) hold no sample at all; a staleness marker is not absence."""
    found: Mask = np.ascontiguousarray(values).view(np.int64) == ABSENT_BITS
    return found


def is_sample(values: Floats) -> Mask:
    """Where ``values`` (any shape) hold a real sample, NaN included: neither ABSENT nor STALE."""
    bits = np.ascontiguousarray(values).view(np.int64)
    found: Mask = (bits != ABSENT_BITS) & (bits != STALE_BITS)
    return found


def blank(shape: int | tuple[int, ...]) -> Floats:
    """A float64 array of ABSENT."""
    made: Floats = np.empty(shape, dtype=np.float64)
    made.view(np.int64).fill(ABSENT_BITS)
    return made


def markers(live: Mask) -> Floats:
    """STALE where ``live``, ABSENT elsewhere."""
    made: Floats = np.where(live, np.int64(STALE_BITS), np.int64(ABSENT_BITS)).view(np.float64)
    return made


class Chunk:
    """A sealed block of ``n`` columns over ``width`` rows (time-major inside).

    A row whose value has the same bits in all columns is kept once; most buckets of a histogram and most
    counters of an idle engine are such rows, so a window of many minutes stays small.
    """

    __slots__ = ("_constant", "_index", "_varying", "nbytes", "samples", "times", "width")

    def __init__(self, times: Times, block: Floats) -> None:
        """``times`` [n] ms; ``block`` [n, width]."""
        bits = np.ascontiguousarray(block).view(np.int64)
        varies = (bits != bits[0]).any(axis=0)
        columns = np.flatnonzero(varies)
        self.times = times.copy()
        self.width = block.shape[1]
        self.samples = int((bits != ABSENT_BITS).sum())
        self._constant: Floats = bits[0].copy().view(np.float64)
        self._varying: Floats = np.ascontiguousarray(bits[:, columns]).view(np.float64)
        self._index = np.full(self.width, -1, dtype=np.int32)
        self._index[columns] = np.arange(columns.size, dtype=np.int32)
        self.nbytes = self.times.nbytes + self._constant.nbytes + self._varying.nbytes + self._index.nbytes

    def take(self, low: int, high: int, rows: Rows | slice, out: Floats) -> None:
        """Copy columns ``low`` up to ``high`` of ``rows`` (a slice where they lie together) into ``out``."""
        if isinstance(rows, slice):
            if rows.stop > self.width:
                inside = max(0, self.width - rows.start)
                out[:, inside:].view(np.int64).fill(ABSENT_BITS)
                rows, out = slice(rows.start, rows.start + inside), out[:, :inside]
        elif rows.size and int(rows.max()) >= self.width:
            known = np.flatnonzero(rows < self.width)
            out.view(np.int64).fill(ABSENT_BITS)
            inner = np.empty((high - low, known.size), dtype=np.float64)
            self.take(low, high, rows[known], inner)
            out[:, known] = inner
            return
        index = self._index[rows]
        columns = np.flatnonzero(index >= 0)
        if columns.size < index.size:
            out[:] = self._constant[rows]
        if not columns.size:
            return
        moving = np.take(self._varying[low:high], index[columns], axis=1)
        if columns.size == index.size:
            out[:] = moving
            return
        # A row at a time: assigning to two axes at once is slower.
        for line, values in zip(out, moving, strict=True):
            line[columns] = values


def together(rows: Rows) -> Rows | slice:
    """``rows`` as a slice when they follow one another."""
    if rows.size > 1 and int(rows[-1]) - int(rows[0]) == rows.size - 1 and (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
