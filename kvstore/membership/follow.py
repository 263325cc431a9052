"""A client that goes along when members come and go.

It watches the membership, and every answer of a shard says the shard's epoch, so that a client whose watch is broken
hears of a change all the same. An operation that met a change is begun again, within its deadline, where that is safe:
a put that was refused for its epoch did nothing, and reads may always be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from kvstore.deadline import Deadline
from kvstore.errors import EpochStale, ShardUnavailable, StoreError
from kvstore.locations import Locations
from kvstore.membership import Membership, View
from kvstore.shards import Shards

if TYPE_CHECKING:
    from kvstore.client import Client
    from kvstore.link import Link

C = TypeVar("C", bound=type[Any])
CONNECT_MS = 2_000
SETTLE_S = 0.02
"""Between two attempts while keys are being handed over (policy)."""
LET_GO_S = 30.0
REPEATABLE = ("lookup", "get", "put", "remove")
"""What may be done twice: an append that was perhaps done is its caller's to judge."""


class Follower:
    """Of one client; `shards()` gives those of the newest view. `close` ends it."""

    def __init__(self, client: Client, membership: Membership, view: View, link: Callable[[str], Link]) -> None:
        self.view = view
        self._client = client
        self._membership = membership
        self._link = link
        self._told = asyncio.Event()
        self._taken = asyncio.Condition()
        self._following = asyncio.get_running_loop().create_task(self._follow())

    def hear(self, epoch: int) -> None:
        """A shard answered in that epoch."""
        if epoch > self.view.epoch:
            self._told.set()

    async def settle(self, shards: Shards, deadline: Deadline) -> None:
        """Back as soon as there are others than `shards`, or after a moment: the shard may be the one that lags."""
        self._told.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(SETTLE_S, deadline.left_s)), self._taken:
                await self._taken.wait_for(lambda: self._client._shards is not shards)

    async def close(self) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        await self._membership.close()

    async def _follow(self) -> None:
        while True:
            watching = asyncio.ensure_future(self._membership.newer(self.view))
            told = asyncio.ensure_future(self._told.wait())
            try:
                await asyncio.wait({watching, told}, return_when=asyncio.FIRST_COMPLETED)
                self._told.clear()
                view = watching.result() if watching.done() else await self._membership.view(Deadline(CONNECT_MS))
                if (view.epoch, view.members) != (self.view.epoch, self.view.members):
                    await self._take(view)
                else:
                    await asyncio.sleep(SETTLE_S)
            except StoreError:
                await asyncio.sleep(SETTLE_S)
            finally:
                watching.cancel()
                told.cancel()
                await asyncio.gather(watching, told, return_exceptions=True)

    async def _take(self, view: View) -> None:
        """Connect to who came, tell them of our sessions, then go by the new view; let go of who left."""
        if view.homes is None or view.epoch < self.view.epoch:
            return
        before = self._client.shards
        links: dict[int, Link] = {}
        fresh: list[Link] = []
        for member in view.members:
            known = before.links.get(member.number)
            if known is None or known.left or known.address != member.address:
                known = self._link(member.address)
                known.number = member.number
                fresh.append(known)
            links[member.number] = known
        for number in view.homes.live:  # whose lease has ended, and who is not struck off yet
            known = before.links.get(number)
            if number not in links and known is not None:
                links[number] = known
        await asyncio.gather(*(self._welcome(link) for link in fresh))
        self.view = view
        self._client._shards = Shards(list(links.values()), self._client.layout, view.homes, before)
        for number, link in before.links.items():
            if links.get(number) is not link:
                link.left = True
                self._client.keep(self._let_go(link))
        async with self._taken:
            self._taken.notify_all()

    async def _welcome(self, link: Link) -> None:
        """A shard that cannot be reached now is tried again when it is needed."""
        with contextlib.suppress(StoreError):
            deadline = Deadline(CONNECT_MS)
            await link.ensure(deadline)
            for handle in self._client.held():
                await link.call(handle.opening(), deadline)

    async def _let_go(self, link: Link) -> None:
        """Not before it has acknowledged that it reads nothing of ours any more, or is dead."""
        end = asyncio.get_running_loop().time() + LET_GO_S
        while link.up and self._client.staging.unsettled(link.number) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(SETTLE_S)
        await link.drop()


async def most_of(view: View, links: list[Link], deadline: Deadline) -> None:
    """Connect to the members. One that died and is not struck off yet does not keep us from the others; raises
    `ShardUnavailable` when there are no others, and whatever a shard refuses us for."""
    for member, link in zip(view.members, links, strict=True):
        link.number = member.number
    failures = await asyncio.gather(*(link.ensure(deadline) for link in links), return_exceptions=True)
    unreached = [error for error in failures if isinstance(error, ShardUnavailable)]
    refused = [error for error in failures if isinstance(error, BaseException) and error not in unreached]
    for error in (*refused, *(unreached if len(unreached) == len(links) else ())):
        raise error
    if not links:
        raise ShardUnavailable("no shard of this store has a lease at the moment")


def follows(*names: str) -> Callable[[C], C]:
    """A class decorator: these methods of a client are begun again when they meet a change of members."""

    def decorate(kind: C) -> C:
        for name in names:
            setattr(kind, name, _following(getattr(kind, name), name))
        return kind

    return decorate


def _following(method: Callable[..., Awaitable[Any]], name: str) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def call(client: Any, *args: Any, deadline_ms: int | None = None, **options: Any) -> Any:
        follower = client.follower
        if follower is None:
            return await method(client, *args, deadline_ms=deadline_ms, **options)
        deadline = client._deadline(deadline_ms)
        while True:
            shards = client.shards
            if name == "get" and isinstance(args[0], Locations) and not shards.has(args[0].shard):
                args = (args[0].keys, *args[1:])  # places in a shard that has left: look the keys up again
            try:
                return await method(client, *args, deadline_ms=max(1, deadline.left_ms), **options)
            except EpochStale:
                if deadline.passed:
                    raise
                await follower.settle(shards, deadline)
            except ShardUnavailable:
                if name not in REPEATABLE or deadline.passed or client.shards is shards:
                    raise

    return call
