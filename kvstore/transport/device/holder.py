"""The process that holds a pool's memory, where that is not the shard: a device's memory goes with it.

A NIXL agent registers only memory of its own process, so the pool of a shard that is reached by NIXL, too, is its
mover's. What the device's memory is once that process has ended, nobody promises (CUDA calls it undefined for who has
it open). So a copy counts only if the process had not begun to end when the copy was over.

A pidfd speaks too late for that: a process counts as ended when its memory and files have gone. What the kernel does
first of all is to mark the robust futexes that its threads hold (`exit_mm_release` in `kernel/fork.c`; robust_list(7)),
and each reader can see that with one load.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from kvstore.arena import Memory
from kvstore.errors import ShardUnavailable, StoreError

PAGE = 4096
_TID = 0x3FFFFFFF
"""The thread that holds a futex; 0 once the kernel has marked it (FUTEX_TID_MASK of linux/futex.h)."""
_ROBUST = _SHARED = 1


class Mark:
    """Says that the calling thread lives, from now until its end; in the first word of `memory`. To be kept."""

    def __init__(self, memory: Memory) -> None:
        """Raises `StoreError` where the C library has no such mutexes as glibc's."""
        self.memory = memory
        at, libc = ctypes.c_void_p(int(memory.bytes.ctypes.data)), ctypes.CDLL(None)
        kind = ctypes.create_string_buffer(64)
        calls: list[tuple[Any, ...]] = [
            (libc.pthread_mutexattr_init, kind),
            (libc.pthread_mutexattr_setrobust, kind, _ROBUST),
            (libc.pthread_mutexattr_setpshared, kind, _SHARED),
            (libc.pthread_mutex_init, at, kind),
            (libc.pthread_mutex_lock, at),
        ]
        failed = next((call.__name__ for call, *given in calls if call(*given)), "")
        if failed or int(memory.bytes[:4].view(np.uint32)[0]) & _TID != threading.get_native_id():
            raise StoreError(f"no robust mutex can be had here{failed and ': '}{failed}")

    @classmethod
    def new(cls) -> Mark:
        """In memory that others may only read."""
        return cls(Memory.create("kv-holder", PAGE, readers_cannot_write=True))


class Holder:
    """Who has made a `Mark`, as another process sees it. May be asked from any thread."""

    def __init__(self, fd: int) -> None:
        """By the mark's descriptor, which this takes over once it returns. Raises `StagingRejected`."""
        self._memory = Memory.adopt(fd)
        self._word = self._memory.bytes[:4].view(np.uint32)

    @property
    def fd(self) -> int:
        return self._memory.fd

    def there(self) -> bool:
        """Whether its end has not begun (stopped, it is there)."""
        return bool(int(self._word[0]) & _TID)

    def require(self, who: str) -> None:
        """Raise `ShardUnavailable` where it has; `who`: the shard, for the error."""
        if not self.there():
            raise ShardUnavailable(f"{who}: the process that held its pool has ended, and the pool with it")

    def close(self) -> None:
        """May be called twice; `there` can still be asked."""
        self._memory.close()
