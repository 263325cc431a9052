"""Replays requests against a store: look all windows of a request up, get and check what is there, put the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvstore.client import Client
from kvstore.errors import LeaseExpired, NoRun, PoolExhausted
from kvstore.handle import SessionHandle
from kvstore.keys import Keys
from kvstore.locations import Locations
from kvstore.messages import Durability
from kvstore.replay.content import Content
from kvstore.replay.oracle import prefix_length
from kvstore.replay.order import Order, Turn
from kvstore.replay.report import Tally
from kvstore.replay.trace import Request

Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pace:
    """`lanes` requests in flight at most; `speed` × trace time (None: as fast as it goes); `lease_ms` 0: no leases."""

    lanes: int = 8
    speed: float | None = None
    lease_ms: int = 1_000
    durability: Durability = Durability.NONE


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """A session a conversation: `conversation[i]` is that of request i."""

    conversation: Sequence[int]
    session_class: str = "conversation"
    ttl_ms: int | None = None


class Driver:
    """Drives one client. `seen` is called after every request."""

    def __init__(
        self,
        client: Client,
        pace: Pace,
        *,
        sessions: SessionPlan | None = None,
        seen: Callable[[Tally], None] = lambda tally: None,
    ) -> None:
        self._client = client
        self._content = Content(client.layout)
        self._pace = pace
        self._plan = sessions
        self._seen = seen
        self._order = Order()
        self._handles: dict[int, asyncio.Future[SessionHandle]] = {}
        self.tally = Tally()

    async def run(self, requests: Sequence[Request]) -> Tally:
        """All of them; raises what the store raised, other than want of room, at the first request that failed."""
        try:
            return await self._run(requests)
        except BaseExceptionGroup as failed:
            raise _first(failed) from None

    async def _run(self, requests: Sequence[Request]) -> Tally:
        lanes = asyncio.Semaphore(self._pace.lanes)
        began, first_ms = time.perf_counter(), requests[0].timestamp_ms if requests else 0
        async with asyncio.TaskGroup() as group:
            for number, request in enumerate(requests):
                if self._pace.speed is not None:
                    due = (request.timestamp_ms - first_ms) / 1000 / self._pace.speed
                    await asyncio.sleep(max(0.0, due - (time.perf_counter() - began)))
                await lanes.acquire()
                turn = self._order.start(request.windows.tolist())
                group.create_task(self._one(number, request, turn, lanes))
        return self.tally

    async def _one(self, number: int, request: Request, turn: Turn, lanes: asyncio.Semaphore) -> None:
        try:
            await turn.ready()
            await self._replay(number, request, turn)
        finally:
            turn.done()
            lanes.release()
        self.tally.requests += 1
        self._seen(self.tally)

    async def _replay(self, number: int, request: Request, turn: Turn) -> None:
        if not len(request.windows):
            return
        session = await self._session(number)
        keys = self._content.keys(request)
        counts = self._content.counts(request)
        located = await self._client.lookup(keys, lease_ms=self._pace.lease_ms, session=session, counted=True)
        there = located.found
        if there.all():
            turn.looked(())
        else:
            turn.looked(request.windows[~_whole(there, counts)].tolist())
        got = await self._get(located, keys, there)
        self._count(got, counts)
        if not got.all():
            await self._put(request, keys, ~got, session)

    async def _get(self, located: Locations, keys: Keys, there: Flags) -> Flags:
        """Which blocks were really read; every one is compared with what its key says."""
        got = np.zeros(len(keys), np.bool_)
        if not there.any():
            return got
        began = time.perf_counter()
        try:
            blocks = await self._client.get(located)
        except LeaseExpired:
            blocks = await self._client.get(keys)
        self.tally.get_seconds.append(time.perf_counter() - began)
        if located.leases:
            await self._client.release(located)
        got = blocks.found
        self.tally.lost += int(np.count_nonzero(there & ~got))
        self.tally.wrong += self._content.wrong(keys[got], blocks.data[got])
        self._moved(int(np.count_nonzero(got)), put=False)
        return got

    async def _put(self, request: Request, keys: Keys, missing: Flags, session: int | SessionHandle) -> None:
        rows = np.flatnonzero(missing)
        try:
            await self._client.put(
                keys[rows],
                self._content.data(keys[rows]),
                valid=self._content.valid(request)[rows],
                chains=self._content.chains(keys[rows]),
                session=session,
                durability=self._pace.durability,
            )
        except (PoolExhausted, NoRun):
            self.tally.refused_puts += 1
            return
        self._moved(len(rows), put=True)

    async def _session(self, number: int) -> int | SessionHandle:
        """The conversation's session: opened by its first turn, waited for by the others."""
        if self._plan is None:
            return 0
        conversation = self._plan.conversation[number]
        handle = self._handles.get(conversation)
        if handle is None:
            handle = self._handles[conversation] = asyncio.ensure_future(
                self._client.open_session(self._plan.session_class, ttl_ms=self._plan.ttl_ms, renew=False)
            )
        return await asyncio.shield(handle)

    def _count(self, got: Flags, counts: Ints) -> None:
        windows = _whole(got, counts)
        self.tally.blocks += len(windows)
        self.tally.block_hits += int(np.count_nonzero(windows))
        self.tally.prefix_hits += prefix_length(windows.tolist())

    def _moved(self, blocks: int, *, put: bool) -> None:
        if put:
            self.tally.store_blocks_put += blocks
        else:
            self.tally.store_blocks_got += blocks
        self.tally.bytes_moved += blocks * self._client.layout.block_bytes


def _first(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first failure of a group of tasks: the others were cancelled or followed from it."""
    error: BaseException = failed
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _whole(blocks: Flags, counts: Ints) -> Flags:
    """Of which windows (of `counts` blocks each) all blocks are there."""
    return np.asarray(np.logical_and.reduceat(blocks, np.cumsum(counts) - counts), np.bool_)
