"""What the parts of a client share: its links, its staging arena, its clock, its deadlines."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore import messages as m
from kvstore.arguments import whole_number
from kvstore.clock import LamportClock
from kvstore.deadline import Deadline
from kvstore.errors import ShardUnavailable
from kvstore.header import Bytes
from kvstore.layout import Layout
from kvstore.locations import Locations, buffer
from kvstore.shards import Shards
from kvstore.staging import Staging
from kvstore.transport import Ints
from kvstore.transport.choice import Choice
from kvstore.wire import MAX_ROWS
from kvstore.writes import Writes

if TYPE_CHECKING:
    from kvstore.handle import SessionHandle
    from kvstore.link import Link
    from kvstore.membership.follow import Follower
    from kvstore.transport.device.cuda import CudaDevice
    from kvstore.transport.device.side import DeviceSide
    from kvstore.transport.probe import Bandwidth


class ClientBase:
    """State of a client; `Reads` and `Puts` act on it, `Client` is made of both."""

    def __init__(
        self,
        layout: Layout,
        *,
        deadline_ms: int,
        verify: bool,
        staging: Staging,
        enforce_need: bool = True,
        transport: str = "auto",
        device: str | None = None,
    ) -> None:
        self.layout = layout
        self.deadline_ms = deadline_ms
        self.verify = verify
        self.clock = LamportClock()
        self.staging = staging
        self.writes = Writes(staging)
        self._clock_lock = threading.Lock()
        self._enforce_need = enforce_need
        self.own: DeviceSide | None = None
        """Its device, where it has one."""
        if device is not None:
            from kvstore.transport.device.side import DeviceSide

            self.own = DeviceSide(device, layout, staging)
            self.device_writes = Writes(self.own.staging, self.writes.tickets)
        self._transport = Choice(transport, layout, self.own)
        self._transport.register(staging.arena)
        self._shards: Shards | None = None
        self.follower: Follower | None = None
        self._sessions: weakref.WeakSet[SessionHandle] = weakref.WeakSet()
        self._beating: asyncio.Task[None] | None = None
        self._kept: set[asyncio.Task[None]] = set()
        self._told: dict[int, object] = {}
        """Peers whose shard knows how fast we read it."""

    @property
    def shards(self) -> Shards:
        if self._shards is None:
            raise ShardUnavailable("the client is closed")
        return self._shards

    def buffer(self, n: int) -> Bytes:
        """Room for a get of `n` blocks, `[n, slot_bytes]`: what is read often should go to the same place. Where shards
        are reached by NIXL it is registered memory, into which they are read without a copy."""
        registered = self._transport.buffer(whole_number("n", n))
        return buffer(n, self.layout.slot_bytes) if registered is None else registered

    def by_bandwidth(self) -> list[tuple[int, Bandwidth]]:
        """Shards by how fast their pools are read from here, the fastest first; those that were not measured (over the
        network, or away) are left out. A key has one home, so a get has no choice to make of it."""
        found = [(link.number, getattr(link.peer, "bandwidth", None)) for link in self.shards.links]
        known = [(number, bandwidth) for number, bandwidth in found if bandwidth is not None]
        return sorted(known, key=lambda one: -one[1].bytes_per_second)

    def card_buffer(self, card: CudaDevice, n: int) -> Bytes | None:
        """See `Choice.card_buffer`."""
        return self._transport.card_buffer(card, n)

    def keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that goes on beside the calls, at most until the client is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)
        return task

    async def _end_kept(self) -> None:
        for task in list(self._kept):
            task.cancel()
        await asyncio.gather(*self._kept, return_exceptions=True)

    def writes_of(self, run: object) -> Writes:
        """Those that a staged run (or blocks that are not staged yet) goes through."""
        own = self.own
        return self.device_writes if own is not None and getattr(run, "_home", None) is own.staging else self.writes

    def _lost(self, link: Link) -> None:
        """A shard's process has ended: nothing of ours is read there any more."""
        self.writes.lost(link)
        if self.own is not None:
            self.device_writes.lost(link)

    def _saw(self, clock: int) -> None:
        """Blocks carry clocks too: what is done after a read is later than what was read."""
        if clock > self.clock.now:
            with self._clock_lock:
                self.clock.merge(clock)

    def _heard(self, epoch: int) -> None:
        """A shard answered in that epoch of its membership."""
        if self.follower is not None:
            self.follower.hear(epoch)

    def _deadline(self, deadline_ms: int | None) -> Deadline:
        return Deadline(self.deadline_ms if deadline_ms is None else deadline_ms)


async def all_of(calls: Any) -> list[Any]:
    """The results of all; the first failure after all have ended, so that nothing goes on behind the caller's back."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def unanswered(n: int) -> m.Published:
    return m.Published(np.zeros(n, np.int64), np.zeros(n, np.uint64), np.zeros(n, np.uint64), np.zeros(n, np.bool_))


def batches(rows: Ints | None, n: int) -> list[Ints | None]:
    """Rows of one shard (None: all `n`), cut into what goes in one message."""
    if (n if rows is None else len(rows)) <= MAX_ROWS:
        return [rows]
    every = np.arange(n) if rows is None else rows
    return [every[at : at + MAX_ROWS] for at in range(0, len(every), MAX_ROWS)]


def enter(found: Locations, number: int, rows: Ints | None, located: m.Located) -> None:
    at = slice(None) if rows is None else rows
    found.slot[at], found.generation[at], found.clock[at] = located.slot, located.generation, located.clock
    found.valid[at], found.miss[at] = located.valid, located.miss
    if located.lease:
        found.leases.setdefault(number, []).append(located.lease)
        found.until_ms[at] = np.where(located.slot >= 0, located.lease_until_ms, 0)


def cut(found: Locations) -> Locations:
    """Nothing counts after the first miss."""
    first = found.prefix
    found.slot[first + 1 :], found.until_ms[first + 1 :] = -1, 0
    return found
