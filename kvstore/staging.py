"""A client's staging arena: where blocks lie while shards pull them.

Every put takes a run and gives it back after a final answer. A put whose outcome is not known leaves its run in
*quarantine*: a shard may still be reading it, so nobody writes there until the shard has said that it will not, or is
dead. Whoever waits for room is served in turn.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque

import numpy as np
import numpy.typing as npt

from kvstore.arena import Arena
from kvstore.bitmap import Bitmap
from kvstore.deadline import Deadline
from kvstore.errors import BadRequest, DeadlineExceeded
from kvstore.header import Bytes
from kvstore.layout import Layout

Slots = npt.NDArray[np.int64]


class Staged:
    """A run of the staging arena: fill `data` `[n, block_bytes]`, then put it. `loose`: not put, nor given back."""

    __slots__ = ("_home", "loose", "slots")

    def __init__(self, home: Room, slots: Slots) -> None:
        self._home = home
        self.slots = slots
        self.loose = True

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def data(self) -> Bytes:
        return self._home.data_of(self.slots)


class Room(ABC):
    """`blocks` slots, numbered from `first` on, and who has which. For one event loop."""

    def __init__(self, blocks: int, first: int = 0) -> None:
        self._room = Bitmap(blocks)
        self._first = first
        self._waiting: deque[tuple[int, asyncio.Future[Staged]]] = deque()
        self._quarantined: dict[int, tuple[int, Staged]] = {}

    def __len__(self) -> int:
        return self._room.count

    @abstractmethod
    def data_of(self, slots: Slots) -> Bytes:
        """The data of a run, `[n, block_bytes]`, in host memory."""

    @abstractmethod
    def close(self) -> None:
        """Let the memory go."""

    @property
    def free(self) -> int:
        return self._room.free

    @property
    def quarantined(self) -> int:
        """Slots that no put may use yet."""
        return sum(len(run) for _, run in self._quarantined.values())

    async def take(self, n: int, deadline: Deadline) -> Staged:
        """A run of `n`; raises `BadRequest` for more than there are, `DeadlineExceeded` when none comes free."""
        if not 1 <= n <= len(self):
            raise BadRequest(f"a staging run of {n} blocks: the staging arena has {len(self)}")
        run = None if self._waiting else self._run(n)
        if run is not None:
            return run
        mine: asyncio.Future[Staged] = asyncio.get_running_loop().create_future()
        self._waiting.append((n, mine))
        try:
            await asyncio.wait({mine}, timeout=deadline.left_s)
        except asyncio.CancelledError:
            self._leave(mine)
            raise
        if mine.done():
            return mine.result()
        self._leave(mine)
        raise DeadlineExceeded(
            f"no staging run of {n} blocks came free within {deadline.allowed_ms:g} ms "
            f"({self.free} of {len(self)} free, {self.quarantined} in quarantine)"
        )

    def give(self, run: Staged) -> None:
        """The run is free: no shard reads it any more."""
        self._room.release(run.slots - self._first)
        self._serve()

    def claim(self, run: Staged) -> Staged:
        """From now on the run is not its caller's any more. Raises `BadRequest` for one that was put or given back:
        by now it may be another's."""
        if run._home is not self or not run.loose:
            raise BadRequest("this staged run is not to be had: it was put or given back, or is another client's")
        run.loose = False
        return run

    def quarantine(self, ticket: int, shard: int, run: Staged) -> None:
        """Nobody knows whether that shard still reads the run of put `ticket`."""
        self._quarantined[ticket] = (shard, run)

    def unsettled(self, shard: int) -> list[int]:
        """Tickets in quarantine for that shard."""
        return [ticket for ticket, (owner, _) in self._quarantined.items() if owner == shard]

    def settle(self, tickets: list[int]) -> None:
        """These puts are over for certain."""
        for ticket in tickets:
            held = self._quarantined.pop(ticket, None)
            if held is not None:
                self.give(held[1])

    def _run(self, n: int) -> Staged | None:
        slots = self._room.allocate(n, one_run=True)
        return None if slots is None else self._staged(slots + self._first)

    def _staged(self, slots: Slots) -> Staged:
        return Staged(self, slots)

    def _serve(self) -> None:
        while self._waiting:
            n, waiter = self._waiting[0]
            if not waiter.done():
                run = self._run(n)
                if run is None:
                    return
                waiter.set_result(run)
            self._waiting.popleft()

    def _leave(self, waiter: asyncio.Future[Staged]) -> None:
        """Whoever waits no more: out of the queue; a run that came in the same moment goes on to the next."""
        if waiter.done():
            self.give(waiter.result())
            return
        self._waiting = deque(entry for entry in self._waiting if entry[1] is not waiter)
        self._serve()


class Staging(Room):
    """`blocks` slots for blocks of `layout`, in an arena that shards map."""

    def __init__(self, layout: Layout, blocks: int, *, name: str = "kv-staging") -> None:
        super().__init__(blocks)
        self.arena = Arena.create(name, blocks, layout.slot_bytes, layout.block_bytes, pool=False)

    def data_of(self, slots: Slots) -> Bytes:
        first = int(slots[0])
        return self.arena.data[first : first + len(slots)]

    def close(self) -> None:
        self.arena.close()
