"""A pool on a device: data in the device's memory, packed; headers in host memory, where readers map them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore.arena import Arena, Memory
from kvstore.errors import BadRequest, StagingRejected
from kvstore.header import HEADER, HEADER_BYTES, Bytes, Headers, Words, sums
from kvstore.runs import pieces
from kvstore.transport.device.bounce import Bounce
from kvstore.transport.device.holder import Holder
from kvstore.transport.device.memory import Device, DeviceMemory, Exported, Move
from kvstore.transport.device.moves import block_moves, host_moves

Slots = npt.NDArray[np.int64]


class GuestStaging(Arena):
    """A client's staging arena as a shard has it: its slots in host memory, and behind them those on its device
    (`data`), packed. It is closed as a whole."""

    def __init__(self, host: Arena, device: Device, words: dict[str, Any], fds: list[int]) -> None:
        """Takes over the descriptors once it returns. Raises `StagingRejected`."""
        super().__init__(host.memory, host.slot_bytes, host.block_bytes)
        self.near = len(host)
        self._device_slots = _count(words, host.block_bytes)
        self.on_device: DeviceMemory = device.open(words, fds)

    def __len__(self) -> int:
        return self.near + self._device_slots

    def close(self) -> None:
        self.on_device.close()
        super().close()


class DeviceArena:
    """What a shard's pool lies in (`arena.PoolArena`). Its copies are made by the shard's thread, which waits."""

    def __init__(
        self,
        device: Device,
        data: DeviceMemory,
        headers: Memory,
        slot_bytes: int,
        block_bytes: int,
        *,
        holder: Holder | None = None,
        exported: Exported | None = None,
    ) -> None:
        """`holder`: the process that `data` was opened from, and `exported` what it was opened by."""
        self.device = device
        self.memory = headers
        self.slot_bytes = slot_bytes
        self.block_bytes = block_bytes
        self.headers: Headers = headers_in(headers)
        self._data = data
        self._bounce = Bounce(device, block_bytes)
        self.holder = holder
        self.exported: Exported = data.export() if exported is None else exported

    @classmethod
    def create(cls, device: Device, count: int, slot_bytes: int, block_bytes: int) -> DeviceArena:
        """`count` new slots. Raises `BadRequest` where the device has not so much memory."""
        data = device.allocate(count * block_bytes)
        headers = Memory.create("kv-headers", count * HEADER_BYTES, readers_cannot_write=True)
        return cls(device, data, headers, slot_bytes, block_bytes)

    def __len__(self) -> int:
        return len(self.headers)

    def beside(self, host: Arena, words: dict[str, Any], fds: list[int]) -> GuestStaging:
        """A client's staging arena, part of which lies on its device. Takes over the descriptors once it returns."""
        return GuestStaging(host, self.device, words, fds)

    def payloads(self, slots: Slots) -> list[Bytes]:
        """The data of each slot, copied off the device."""
        out = np.empty((len(slots), self.block_bytes), np.uint8)
        for rows, room in self._off(self._data.address, slots):
            out[rows] = room
        return list(out)

    def fill(self, slots: Slots, payloads: Sequence[Bytes]) -> None:
        """Each payload at the beginning of its slot, zeros behind it."""
        for rows, room in self._bounce.rounds(len(slots)):
            for row, payload in zip(room, payloads[rows], strict=True):
                row[: len(payload)] = payload
                row[len(payload) :] = 0
            self._move(host_moves(self._data.address, slots[rows], room, self.block_bytes))

    def sums(self, slots: Slots) -> Words:
        """See `PoolArena.sums`."""
        found = np.zeros(len(slots), np.uint64)
        for rows, room in self._off(self._data.address, slots):
            found[rows] = sums(room)
        return found

    def pull(self, staging: Arena, source: Slots, target: Slots) -> Words:
        """See `PoolArena.pull`.

        What comes from host memory is summed where it is bounced, before it goes on to the device; what comes from a
        device's memory is copied there device to device, and summed from a copy off our own.
        """
        near = len(staging) if not isinstance(staging, GuestStaging) else staging.near
        at_host = source < near
        found = np.zeros(len(source), np.uint64)
        for where, take in ((at_host, self._pull_host), (~at_host, self._pull_device)):
            rows = np.flatnonzero(where)
            if len(rows):
                found[rows] = take(staging, source[rows], target[rows])
        return found

    def _pull_host(self, staging: Arena, source: Slots, target: Slots) -> Words:
        found = np.zeros(len(source), np.uint64)
        for rows, room in self._bounce.rounds(len(source)):
            for start, into, length in pieces(source[rows], np.arange(len(room))):
                room[into : into + length] = staging.data[start : start + length]
            found[rows] = sums(room)
            self._move(host_moves(self._data.address, target[rows], room, self.block_bytes))
        return found

    def _pull_device(self, staging: Arena, source: Slots, target: Slots) -> Words:
        assert isinstance(staging, GuestStaging)
        theirs = staging.on_device.address
        self._move(block_moves(self._data.address, target, theirs, source - staging.near, self.block_bytes))
        return self.sums(target)

    def _off(self, address: int, slots: Slots) -> Iterator[tuple[slice, Bytes]]:
        """Blocks on their way off the device, as many as fit into the bounce buffer at a time."""
        for rows, room in self._bounce.rounds(len(slots)):
            self._move(host_moves(address, slots[rows], room, self.block_bytes, off=True))
            yield rows, room

    def _move(self, moves: Sequence[Move]) -> None:
        """Raises `DeviceFailed`, and `ShardUnavailable` where who holds the pool has ended."""
        try:
            self.device.move(moves)
        finally:
            if self.holder is not None:
                self.holder.require("this shard")

    def close(self) -> None:
        """The device's memory is not freed: readers may still have its handle open, and what they read would be
        undefined then (CUDA). It goes with the process that holds it."""
        if self.holder is not None:
            self._data.close()
            self.holder.close()
        self.memory.close()


def headers_in(memory: Memory) -> Headers:
    """The headers that lie in `memory`, one behind the other."""
    count = memory.size // HEADER_BYTES
    found: Headers = memory.bytes[: count * HEADER_BYTES].view(HEADER)
    return found


def adopt_headers(fd: int, blocks: int) -> tuple[Memory, Headers]:
    """Another process's headers of `blocks` blocks. Raises `StagingRejected`, `BadRequest`, and leaves `fd` open."""
    if os.fstat(fd).st_size < blocks * HEADER_BYTES:
        raise BadRequest(f"the shard handed out headers of fewer blocks than its {blocks}")
    memory = Memory.adopt(fd)
    return memory, headers_in(memory)[:blocks]


def _count(words: dict[str, Any], block_bytes: int) -> int:
    slots, size = words.get("slots"), words.get("size")
    if type(slots) is not int or type(size) is not int or not 1 <= slots <= size // block_bytes:
        raise StagingRejected(f"{slots!r} blocks of {block_bytes} bytes do not lie in {size!r} bytes of a device")
    return slots
