"""Where blocks land on a GPU that come over the network: registered with NIXL, header and data side by side.

They come as whole slots, a run a descriptor; the headers then go to the host, to be judged, and the data to its places.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from kvstore.deadline import Deadline
from kvstore.header import HEADER_BYTES, Bytes
from kvstore.runs import pieces
from kvstore.transport import Distant, Ints
from kvstore.transport.device.cuda import CudaDevice
from kvstore.transport.device.memory import Device, Move
from kvstore.transport.device.rows import DeviceRows

if TYPE_CHECKING:
    from kvstore.client_base import ClientBase

LANDING_BYTES = 64 << 20


class Landing:
    """Of one client's device; for one event loop. One read at a time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._room: Bytes | None = None
        self._turn = asyncio.Lock()

    def ready(self, client: ClientBase, slot_bytes: int) -> bool:
        """Whether there is memory to land in; made when first asked for. `_room` is only ever an address."""
        if self._room is None and isinstance(self._device, CudaDevice):
            self._room = client.card_buffer(self._device, max(1, LANDING_BYTES // slot_bytes))
        return self._room is not None

    async def bring(
        self,
        far: Distant,
        slots: Ints,
        deadline: Deadline,
        heads: tuple[Bytes, Ints, int],
        to: tuple[DeviceRows, Ints],
    ) -> int:
        """Read `slots`; of each the first `width` bytes go to a row of `heads` (array, rows, width) and the data to a
        place of `to` (rows, places). How many descriptors it took."""
        done = 0
        async with self._turn:
            room = self._room
            assert room is not None, "asked for before `ready`"
            for first in range(0, len(slots), len(room)):
                part = slice(first, first + len(room))
                count = len(slots[part])
                try:
                    done += await far.fetch(slots[part], None, room[:count], deadline)
                except BaseException:
                    self._room = None  # what was given up may still land there
                    raise
                self._device.move(_onward(room, count, (heads[0], heads[1][part], heads[2]), (to[0], to[1][part])))
        return done


def _onward(room: Bytes, count: int, heads: tuple[Bytes, Ints, int], to: tuple[DeviceRows, Ints]) -> list[Move]:
    out, rows, width = heads
    target, places = to
    base, pitch, size = int(room.ctypes.data), room.strides[0], target.block_bytes
    host, step = int(out.ctypes.data), out.strides[0]
    every = np.arange(count, dtype=np.int64)
    moves = []
    for start, into, length in pieces(every, rows):
        moves.append(Move(host + into * step, step, base + start * pitch, pitch, width, length))
    for start, into, length in pieces(every, places):
        data = base + HEADER_BYTES + start * pitch
        moves.append(Move(target.address + into * size, size, data, pitch, size, length))
    return moves
