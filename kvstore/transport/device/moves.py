"""Which pieces of memory a copy of blocks is made of: as few as there are runs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvstore.header import Bytes
from kvstore.runs import pieces
from kvstore.transport.device.memory import Move

Slots = npt.NDArray[np.int64]


def block_moves(to: int, target: Slots, source: int, origin: Slots, block_bytes: int) -> list[Move]:
    """Blocks `origin` of the packed memory at `source` to blocks `target` of that at `to`."""
    found = []
    for start, into, length in pieces(origin, target):
        at, where = source + start * block_bytes, to + into * block_bytes
        found.append(Move(where, block_bytes, at, block_bytes, block_bytes, length))
    return found


def host_moves(
    address: int, slots: Slots, room: Bytes, block_bytes: int, *, rows: Slots | None = None, off: bool = False
) -> list[Move]:
    """Between blocks `slots` of the packed memory at `address` and rows of `room` `[n, ≥ block_bytes]` (`rows` None:
    in order). `off`: from the device into `room`, else the other way."""
    pitch, base = room.strides[0], int(room.ctypes.data)
    places = np.arange(len(slots), dtype=np.int64) if rows is None else rows
    found = []
    for start, into, length in pieces(slots, places):
        there, here = address + start * block_bytes, base + into * pitch
        if off:
            found.append(Move(here, pitch, there, block_bytes, block_bytes, length))
        else:
            found.append(Move(there, block_bytes, here, pitch, block_bytes, length))
    return found
