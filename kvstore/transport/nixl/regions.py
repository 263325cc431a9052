"""Memory that reads land in: registered once, used often, and let go only when no read is under way into it."""

from __future__ import annotations

import contextlib
import mmap
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore.errors import StoreError
from kvstore.header import HEADER_BYTES, Bytes
from kvstore.transport.nixl.agent import Agent, spans
from kvstore.transport.nixl.owner import Owner

if TYPE_CHECKING:
    from kvstore.transport.device.cuda import CudaDevice, CudaMemory


class _Holder:
    """What arrays of a region are made of: it lives as long as any of them, and its end is theirs."""

    def __init__(self, base: int, size: int) -> None:
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (base, False)}


class Plain:
    """Host memory, in large pages where the kernel has them: 16 MiB land in a fifth less time then (cma)."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        plain = np.frombuffer(self._map, np.uint8)
        plain.fill(0)
        self.address = int(plain.ctypes.data)

    def close(self) -> None:
        self._map.close()


class Region:
    """`slots` slots of memory, registered with an owner's agent. `busy`: reads under way into it; `given_up`: those of
    them that nobody waits for any more, so that nobody may use the memory. `card`: on that device; what `array` gives
    then is where the bytes lie, and not to be looked into."""

    def __init__(self, owner: Owner, slots: int, slot_bytes: int, card: CudaDevice | None = None) -> None:
        self.slot_bytes = slot_bytes
        self.size = slots * slot_bytes
        self.gpu = None if card is None else card.ordinal
        self._owner = owner
        self._memory: Plain | CudaMemory | None = Plain(self.size) if card is None else card.allocate(self.size)
        self.base = self._memory.address
        self.busy = 0
        self.given_up = 0
        self._parts: tuple[int, int] | None = None
        self._dropped = False
        self._lock = threading.Lock()
        whole = spans(self.base, np.arange(slots), 1, slot_bytes)
        whole[:, 2] = self.gpu or 0

        def register(agent: Any) -> int:
            agent.register(self.base, self.size, gpu=self.gpu)
            made: int = agent.prepare(None, whole, gpu=self.gpu)
            return made

        try:
            self.prepared = owner.call(register)
            """A prepared list of its slots."""
        except BaseException:
            self._memory.close()
            raise

    def parts(self, agent: Agent, block_bytes: int) -> tuple[int, int]:
        """Prepared lists of its slots' headers, and of their data; for the agent's work."""
        if self._parts is None:
            count = self.size // self.slot_bytes
            heads = spans(self.base, np.arange(count), 1, self.slot_bytes)
            heads[:, 1], heads[:, 2] = HEADER_BYTES, self.gpu or 0
            data = heads + np.array([HEADER_BYTES, block_bytes - HEADER_BYTES, 0], np.int64).astype(np.uint64)
            first = agent.prepare(None, heads, gpu=self.gpu)
            self._parts = first, agent.prepare(None, data, gpu=self.gpu)
        return self._parts

    def array(self) -> Bytes:
        """`[slots, slot_bytes]`; to be called once: when this array and its views are gone, so is the region."""
        holder = _Holder(self.base, self.size)
        weakref.finalize(holder, self.drop).atexit = False
        found: Bytes = np.asarray(holder).reshape(-1, self.slot_bytes)
        return found

    def holds(self, address: int, size: int) -> bool:
        return self.base <= address and address + size <= self.base + self.size

    def begin(self) -> None:
        with self._lock:
            self.busy += 1

    def give_up(self) -> None:
        with self._lock:
            self.given_up += 1

    def end(self, *, given_up: bool) -> None:
        """A read is over. Called on the owner's thread, or by `drop`."""
        with self._lock:
            self.busy -= 1
            self.given_up -= given_up
        self._maybe_release()

    def drop(self) -> None:
        """Nobody looks at it any more."""
        self._dropped = True
        self._maybe_release()

    def _maybe_release(self) -> None:
        with self._lock:
            if not self._dropped or self.busy or self._memory is None:
                return
            memory, self._memory = self._memory, None

        def release(agent: Any) -> None:
            for prepared in (self.prepared, *(self._parts or ())):
                agent.drop(prepared)
            agent.deregister(self.base)
            memory.close()

        self._owner.at_leisure(release)


class Regions:
    """The regions of one client."""

    def __init__(self, owner: Owner, slot_bytes: int) -> None:
        self._owner = owner
        self._slot_bytes = slot_bytes
        self._regions: list[weakref.ref[Region]] = []
        self._lock = threading.Lock()
        self._last: tuple[weakref.ref[Bytes], weakref.ref[Region], int] | None = None

    def make(self, slots: int, card: CudaDevice | None = None) -> Region:
        """New registered memory for `slots` slots, on a GPU if there is one. Raises `StoreError` where NIXL or the GPU
        will not."""
        region = Region(self._owner, slots, self._slot_bytes, card)
        with self._lock:
            self._regions = [known for known in self._regions if known() is not None]
            self._regions.append(weakref.ref(region))
        return region

    def find(self, out: Bytes) -> tuple[Region, int] | None:
        """The region that `out` lies in, whole, and the slot of it that `out` begins at."""
        last = self._last  # what is read into often is the same array
        if last is not None and last[0]() is out:
            region = last[1]()
            if region is not None:
                return region, last[2]
        address, size = int(out.ctypes.data), out.nbytes
        for known in self._regions:
            region = known()
            if region is not None and region.holds(address, size):
                first, odd = divmod(address - region.base, self._slot_bytes)
                if odd:
                    raise StoreError("a buffer does not begin at a slot of its memory")
                self._last = weakref.ref(out), known, first
                return region, first
        return None
