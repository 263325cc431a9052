"""The clients of a shard: who came through its door, and which pulls of theirs are running.

A client's staging arena is mapped here from its hello to its end; it is let go only when no pull reads it any more.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvstore.arena import Arena
from kvstore.descriptors import MAX_CLIENTS, limit, most_clients
from kvstore.errors import BadRequest, ClientUnknown, StagingRejected

_MAX_REFUSED = 65_536
MAX_TOLD = 64
"""Clients whose bandwidth is on the page: their names are theirs to choose, and a page stays bounded (policy)."""


@dataclass(eq=False)
class Connected:
    """One client: `staging` None once it is gone and its last pull has ended, or where it lies on another host."""

    number: int
    name: str
    pid: int
    staging: Arena | None
    afar: int = 0
    """Slots of a staging arena that is not mapped here but read over the network."""
    heartbeat: float = field(default_factory=time.monotonic)
    gone: bool = False
    running: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    refused: OrderedDict[int, None] = field(default_factory=OrderedDict)
    measured: dict[int, int] = field(default_factory=dict)
    """Bytes per second by lane, as it says it reads us."""

    @contextmanager
    def pulling(self, ticket: int) -> Iterator[Arena | None]:
        """Its staging arena (None: it lies afar), for as long as a put of that ticket reads it; refused once cancelled
        or gone."""
        if self.gone or (self.staging is None and not self.afar):
            raise StagingRejected("the client that owns this staging arena is gone")
        if ticket in self.refused:
            raise StagingRejected(f"put {ticket} was cancelled by its client before it began")
        if ticket in self.running:
            raise BadRequest(f"ticket {ticket} is already in use")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.running[ticket] = done
        try:
            yield self.staging
        finally:
            del self.running[ticket]
            done.set_result(None)
            self._let_go()

    async def cancel(self, tickets: list[int]) -> None:
        """Returns when none of these puts reads the staging arena, nor ever will."""
        for ticket in tickets:
            self.refused[ticket] = None
        while len(self.refused) > _MAX_REFUSED:
            self.refused.popitem(last=False)
        waiting = [self.running[ticket] for ticket in tickets if ticket in self.running]
        if waiting:
            await asyncio.wait(waiting)

    async def over(self) -> None:
        """Returns when no put reads the staging arena any more."""
        if self.running:
            await asyncio.wait(list(self.running.values()))

    def leave(self) -> None:
        self.gone = True
        self._let_go()

    def _let_go(self) -> None:
        if self.gone and not self.running and self.staging is not None:
            self.staging.close()
            self.staging = None


class Clients:
    """All clients by number. Numbers are drawn at random: who does not hold one cannot speak for its client."""

    def __init__(self, most: int | None = None) -> None:
        """`most` clients at once (default: what the limit of open files allows)."""
        self._open_files = limit()
        self.most = most_clients(self._open_files) if most is None else most
        self._by_number: dict[int, Connected] = {}
        self._leaving: dict[int, Connected] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Connected]:
        return iter(list(self._by_number.values()))

    def require_room(self) -> None:
        """Raise `BadRequest` where no further client is let in."""
        if len(self._by_number) >= self.most:
            why = f": its limit of open files is {self._open_files} (ulimit -n)" if self.most < MAX_CLIENTS else ""
            raise BadRequest(f"this shard has {self.most} clients already, which is as many as it takes{why}")

    def admit(self, name: str, pid: int, staging: Arena | None, *, afar: int = 0) -> Connected:
        """A new client. Raises `BadRequest` where there are too many."""
        self.require_room()
        client = Connected(secrets.randbits(63) | 1, name, pid, staging, afar)
        self._by_number[client.number] = client
        return client

    def leave(self, client: Connected) -> None:
        """The client is gone: its staging arena follows when its last pull has ended."""
        self._by_number.pop(client.number, None)
        self._leaving = {number: one for number, one in self._leaving.items() if one.running}
        if client.running:
            self._leaving[client.number] = client
        client.leave()

    def known(self, number: int) -> Connected:
        """The client of that number, which has just shown that it lives; raises `ClientUnknown`."""
        client = self._by_number.get(number)
        if client is None:
            raise ClientUnknown("unknown client: come through the shard's door first (its connection may have ended)")
        client.heartbeat = time.monotonic()
        return client

    def get(self, number: int) -> Connected | None:
        """The client of that number, also one that is gone while a pull of it may still be running."""
        return self._by_number.get(number) or self._leaving.get(number)

    def bandwidths(self) -> dict[tuple[str, int], int]:
        """Bytes per second by name and lane; of clients with one name the slowest, of all the first `MAX_TOLD`."""
        found: dict[tuple[str, int], int] = {}
        for client in self._by_number.values():
            for lane, rate in client.measured.items():
                at = (client.name, lane)
                found[at] = min(rate, found.get(at, rate))
        return dict(sorted(found.items())[:MAX_TOLD])

    def oldest_heartbeat_s(self) -> float | None:
        """Age of the oldest client's last sign of life; None without clients."""
        if not self._by_number:
            return None
        return time.monotonic() - min(client.heartbeat for client in self._by_number.values())
