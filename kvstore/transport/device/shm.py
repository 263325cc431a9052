"""The test device: shared host memory that is only ever copied to and from, as a GPU's is."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore.arena import Memory
from kvstore.errors import BadRequest, StagingRejected
from kvstore.header import Bytes
from kvstore.memory import free_memory
from kvstore.transport.device.memory import Exported, Move

if TYPE_CHECKING:
    from kvstore.transport.device.gather import Gather


class ShmMemory:
    """A sealed memfd; others may only read it, unless it is lent."""

    def __init__(self, memory: Memory) -> None:
        self.size = memory.size
        self.address = int(memory.bytes.ctypes.data)
        self._memory: Memory | None = memory

    def export(self) -> Exported:
        if self._memory is None:
            raise BadRequest("memory that was let go is exported to nobody")
        return Exported({"kind": "shm", "size": self.size}, [self._memory.fd])

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None
            self.address = 0


class ShmDevice:
    """All of this host's `shm` memory."""

    name = "shm"
    kind = "shm"
    lane = "memfd"
    gather: Gather | None = None

    def allocate(self, size: int, *, lent: bool = False) -> ShmMemory:
        try:
            return ShmMemory(Memory.create("kv-device", size, readers_cannot_write=not lent))
        except (OSError, MemoryError, ValueError) as error:
            raise BadRequest(f"shm: {size} bytes cannot be had: {getattr(error, 'strerror', None) or error}") from None

    def open(self, words: dict[str, Any], fds: list[int], *, writable: bool = False) -> ShmMemory:
        if words.get("kind") != "shm" or len(fds) != 1:
            raise StagingRejected("not memory of the device shm: one descriptor is expected")
        size, announced = os.fstat(fds[0]).st_size, words.get("size")
        if type(announced) is not int or not 0 < announced <= size:
            raise StagingRejected(f"memory of {size} bytes, and {announced!r} were announced")
        return ShmMemory(Memory.adopt(fds[0], writable=writable))

    def host(self, size: int) -> Bytes:
        return np.zeros(size, np.uint8)

    def move(self, moves: Sequence[Move]) -> None:
        for move in moves:
            if move.packed:
                ctypes.memmove(move.to, move.source, move.width * move.rows)
                continue
            for row in range(move.rows):
                ctypes.memmove(move.to + row * move.to_pitch, move.source + row * move.source_pitch, move.width)

    def settle(self) -> None:
        return

    def quiesce(self) -> None:
        return

    def free_bytes(self) -> int | None:
        return free_memory()
