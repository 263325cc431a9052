"""Shared memory in which slots lie: a shard's pool, or a client's staging area.

A memfd, passed over a Unix socket (SCM_RIGHTS). Both are sealed against shrinking and growing, since a mapping of a
shrunk file dies of SIGBUS; a pool also against new writable mappings (F_SEAL_FUTURE_WRITE, Linux 5.1), so that a reader
cannot scribble into it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvstore.errors import StagingRejected
from kvstore.header import HEADER, HEADER_BYTES, Bytes, Headers, Words, sums
from kvstore.runs import pieces

F_SEAL_FUTURE_WRITE = 0x10
_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW if hasattr(fcntl, "F_SEAL_SHRINK") else 0x2 | 0x4
_F_ADD_SEALS = getattr(fcntl, "F_ADD_SEALS", 1033)
_F_GET_SEALS = getattr(fcntl, "F_GET_SEALS", 1034)


Slots = npt.NDArray[np.int64]


class Memory:
    """A sealed memfd and its mapping."""

    def __init__(self, fd: int, size: int, *, writable: bool) -> None:
        self.fd = fd
        self.size = size
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.map = mmap.mmap(fd, size, mmap.MAP_SHARED, access)
        self.bytes: Bytes = np.frombuffer(self.map, np.uint8)
        self._close: weakref.finalize[[int], Memory] | None = None

    @classmethod
    def create(cls, name: str, size: int, *, readers_cannot_write: bool) -> Memory:
        """A new memfd of `size` bytes, mapped writable here, then sealed."""
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            memory = cls(fd, size, writable=True)
            seals = _SIZE_SEALS | (F_SEAL_FUTURE_WRITE if readers_cannot_write else 0) | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, _F_ADD_SEALS, seals)
        except BaseException:
            os.close(fd)
            raise
        memory._close = weakref.finalize(memory, os.close, fd)
        return memory

    @classmethod
    def adopt(cls, fd: int, *, writable: bool = False) -> Memory:
        """Map somebody else's memfd; raises `StagingRejected` when it is no memfd or not sealed against resizing."""
        try:
            seals = fcntl.fcntl(fd, _F_GET_SEALS)
        except OSError as error:
            raise StagingRejected(f"not a memfd: {error.strerror}") from None
        if seals & _SIZE_SEALS != _SIZE_SEALS:
            raise StagingRejected("arena is not sealed against shrinking and growing (F_SEAL_SHRINK | F_SEAL_GROW)")
        size = os.fstat(fd).st_size
        if size == 0:
            raise StagingRejected("arena is empty")
        return cls(fd, size, writable=writable)

    def close(self) -> None:
        """Close the descriptor. The mapping lives as long as an array looks at it. A memory that was made here closes
        itself when nobody has it any more."""
        if self._close is not None:
            self._close()
        elif self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


class PoolArena(Protocol):
    """What a pool lies in: headers always in host memory (`memory`, which readers map), data there or on a device."""

    memory: Memory
    slot_bytes: int
    block_bytes: int
    headers: Headers

    def __len__(self) -> int: ...

    def payloads(self, slots: Slots) -> list[Bytes]:
        """The data of each slot in host memory: where it lies, or a copy off the device."""
        ...

    def fill(self, slots: Slots, payloads: Sequence[Bytes]) -> None:
        """Each payload (at most a block) at the beginning of its slot."""
        ...

    def pull(self, staging: Arena, source: Slots, target: Slots) -> Words:
        """Copy the data (not the headers) of slots `source` of `staging` to `target`; xxh3-64 of each block as it has
        arrived here. Raises `DeviceFailed`."""
        ...

    def sums(self, slots: Slots) -> Words:
        """xxh3-64 of the data in each of `slots`, as it lies there now."""
        ...

    def close(self) -> None: ...


class Arena:
    """Slots in a `Memory`: `slots` `[n, slot_bytes]`, `headers` `[n]` of `HEADER`, `data` `[n, block_bytes]`."""

    def __init__(self, memory: Memory, slot_bytes: int, block_bytes: int) -> None:
        count = memory.size // slot_bytes
        if count < 1 or HEADER_BYTES + block_bytes > slot_bytes:
            raise StagingRejected(f"an arena of {memory.size} bytes holds no slot of {slot_bytes}")
        self.memory = memory
        self.slot_bytes = slot_bytes
        self.block_bytes = block_bytes
        self.slots: Bytes = memory.bytes[: count * slot_bytes].reshape(count, slot_bytes)
        self.data: Bytes = self.slots[:, HEADER_BYTES : HEADER_BYTES + block_bytes]
        self.headers: Headers = headers_of(self.slots)

    def __len__(self) -> int:
        return len(self.slots)

    @classmethod
    def create(cls, name: str, count: int, slot_bytes: int, block_bytes: int, *, pool: bool) -> Arena:
        """A new arena of `count` slots; `pool`: others may only read it."""
        memory = Memory.create(name, count * slot_bytes, readers_cannot_write=pool)
        return cls(memory, slot_bytes, block_bytes)

    def payloads(self, slots: Slots) -> list[Bytes]:
        """The data of each slot, where it lies."""
        data = self.data
        return [data[slot] for slot in slots.tolist()]

    def fill(self, slots: Slots, payloads: Sequence[Bytes]) -> None:
        """Each payload at the beginning of its slot."""
        data = self.data
        for slot, payload in zip(slots.tolist(), payloads, strict=True):
            data[slot, : len(payload)] = payload

    def pull(self, staging: Arena, source: Slots, target: Slots) -> Words:
        """See `PoolArena.pull`."""
        for start, into, length in pieces(source, target):
            self.data[into : into + length] = staging.data[start : start + length]
        return self.sums(target)

    def sums(self, slots: Slots) -> Words:
        """See `PoolArena.sums`."""
        return sums(self.payloads(slots))

    def close(self) -> None:
        self.memory.close()


def headers_of(slots: Bytes) -> Headers:
    """The headers of `slots` `[n, slot_bytes]` as a strided view `[n]` of `HEADER`; writes go through."""
    rows: Headers = slots[:, :HEADER_BYTES].view(HEADER)[:, 0]
    return rows
