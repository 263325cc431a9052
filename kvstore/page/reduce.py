"""A pool of any size in a few numbers: at most 256 cells, and free blocks by the length of their run."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvstore.pool import State

MAX_CELLS = 256
RUN_BINS = ("1", "2-3", "4-7", "8-15", "16-31", "32+")


class Cell(IntEnum):
    """What most blocks of a cell are."""

    FREE = 0
    CACHED = 1
    USED = 2
    LEASED = 3
    TAIL_WASTE = 4
    RESERVED = 5


_CELL_OF_STATE = np.zeros(len(State), np.int64)
_CELL_OF_STATE[[State.FREE, State.RESERVED, State.CACHED, State.USED, State.LEASED]] = [
    Cell.FREE,
    Cell.RESERVED,
    Cell.CACHED,
    Cell.USED,
    Cell.LEASED,
]


class BlockMap(NamedTuple):
    """`cells` `[≤ 256]` codes of `Cell`, by position; `cell_blocks`: blocks in one (the last may have fewer)."""

    cells: npt.NDArray[np.int64]
    cell_blocks: int


def block_map(states: npt.NDArray[np.uint8], fill: npt.NDArray[np.float64]) -> BlockMap:
    """Reduce `states` `[n]` (`pool.State`) and `fill` `[n]` (filled share of a published block, NaN for the others).

    A published block under half filled is tail waste, whatever its state. Of two codes that are equally common in a
    cell the higher one is shown, so that what is in use is not hidden behind what is free.
    """
    count = len(states)
    if not count:
        return BlockMap(np.zeros(0, np.int64), 0)
    codes = _CELL_OF_STATE[states]
    codes[fill < 0.5] = Cell.TAIL_WASTE
    per_cell = -(-count // MAX_CELLS)
    cells = -(-count // per_cell)
    tally = np.bincount(np.arange(count) // per_cell * len(Cell) + codes, minlength=cells * len(Cell))
    backwards = tally.reshape(cells, len(Cell))[:, ::-1]
    return BlockMap(len(Cell) - 1 - backwards.argmax(axis=1), per_cell)


def blocks_by_run(lengths: npt.NDArray[np.int64]) -> dict[str, int]:
    """Free blocks by the length of the run that they lie in; `lengths` `[runs]`."""
    exponents = np.minimum(np.frexp(lengths.astype(np.float64))[1] - 1, len(RUN_BINS) - 1)
    blocks = np.bincount(exponents, weights=lengths, minlength=len(RUN_BINS))
    return {name: int(found) for name, found in zip(RUN_BINS, blocks.tolist(), strict=True)}
