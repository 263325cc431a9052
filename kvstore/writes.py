"""A client's writes: blocks into the staging arena, a message to their shard, and the run back when it is certain."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kvstore import wire
from kvstore.deadline import Deadline
from kvstore.errors import DeadlineExceeded, EpochStale, ShardUnavailable, StoreError
from kvstore.header import Bytes, Words, sums
from kvstore.link import Link
from kvstore.messages import Append, Published, Put
from kvstore.staging import Room, Staged

CANCEL_MS = 10_000
_CANCEL_EVERY_S = 0.2

Fill = Callable[[Staged, Words], Put | Append]
"""Makes the message for a staged run and the sums of its blocks."""


class Writes:
    """Puts and appends of one client. After a deadline, a lost connection or a cancelled task the run stays in
    quarantine until the shard has acknowledged a cancel, or is dead."""

    def __init__(self, staging: Room, tickets: Iterator[int] | None = None) -> None:
        """`tickets`: those of another `Writes` of the same client, since shards tell its puts apart by them."""
        self.staging = staging
        self.tickets = itertools.count(1) if tickets is None else tickets
        self._cancels: dict[int, asyncio.Task[None]] = {}

    async def send(self, link: Link, blocks: Bytes | Staged, fill: Fill, deadline: Deadline, trace: str) -> Published:
        """Stage `blocks` (unless they are), have `link`'s shard pull them, and its answer."""
        run = blocks if isinstance(blocks, Staged) else await self.staging.take(len(blocks), deadline)
        self.staging.claim(run)
        try:
            if not isinstance(blocks, Staged):
                run.data[:] = blocks
            message = fill(run, sums(run.data))
        except BaseException:
            self.staging.give(run)  # nothing was sent
            raise
        return await self._pulled(link, run, message, deadline, trace, back=isinstance(blocks, Staged))

    async def _pulled(
        self, link: Link, run: Staged, message: Put | Append, deadline: Deadline, trace: str, *, back: bool
    ) -> Published:
        """`back`: a run that another shard should pull goes back to the caller."""
        ticket = next(self.tickets)
        client = 0
        try:
            client = int((await link.ensure(deadline)).facts["client"])
        except BaseException:
            self.staging.give(run)  # nothing was sent
            raise
        try:
            answer: Published = await link.call(message, deadline, ticket=ticket, trace=trace)
        except BaseException as error:
            if back and isinstance(error, EpochStale):
                run.loose = True
            elif isinstance(error, StoreError) and not isinstance(error, DeadlineExceeded | ShardUnavailable):
                self.staging.give(run)  # refused: a final answer
            else:
                self._unsure(link, run, ticket, client)
            raise
        self.staging.give(run)
        return answer

    def _unsure(self, link: Link, run: Staged, ticket: int, client: int) -> None:
        self.staging.quarantine(ticket, link.number, run)
        if link.peer is not None and not link.peer.alive():
            self.lost(link)
        elif link.number not in self._cancels:
            task = asyncio.get_running_loop().create_task(self._cancel(link, client))
            self._cancels[link.number] = task
            task.add_done_callback(lambda _: self._cancels.pop(link.number, None))

    def lost(self, link: Link) -> None:
        """The shard's process has ended: nothing of ours is read there any more."""
        self.staging.settle(self.staging.unsettled(link.number))

    async def _cancel(self, link: Link, client: int) -> None:
        """Ask until it is acknowledged. Under the number that the puts were sent with: if the shard has forgotten it,
        no pull of it is left."""
        while tickets := self.staging.unsettled(link.number):
            try:
                answer: Any = await link.call(
                    wire.Cancel(np.asarray(tickets, np.uint64)), Deadline(CANCEL_MS), client=client
                )
            except StoreError:
                if link.peer is not None and not link.peer.alive():
                    self.lost(link)
                await asyncio.sleep(_CANCEL_EVERY_S)
                continue
            self.staging.settle(answer.tickets.tolist())

    async def close(self) -> None:
        for task in list(self._cancels.values()):
            task.cancel()
        await asyncio.gather(*self._cancels.values(), return_exceptions=True)
