"""What a shard writes to its log, and which of its slots the log knows."""

from __future__ import annotations

import asyncio
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvstore.arena import Arena
from kvstore.errors import BadRequest, LogFailed
from kvstore.keys import Keys
from kvstore.layout import Layout
from kvstore.log import Batch, BlockShape, Kind, Ticket, appends, drops, puts
from kvstore.log import Durability as LogDurability
from kvstore.messages import Durability

Slots = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Digests = npt.NDArray[np.uint8]


class ShardLog(Protocol):
    """What a shard needs of a log (`kvstore.log.Log`)."""

    @property
    def failure(self) -> LogFailed | None: ...

    def append(self, batch: Batch, loop: asyncio.AbstractEventLoop | None = None, traceparent: str = "") -> Ticket: ...


def shape_of(layout: Layout) -> BlockShape:
    """Where a token's bytes lie in a block of `layout`."""
    return BlockShape(2 * layout.heads, layout.block_tokens, layout.head_dim * layout.item_bytes)


class Journal:
    """A log, or none. `logged [slots]`: what lies in the slot is in the log."""

    def __init__(self, log: ShardLog | None, strongest: Durability, layout: Layout, arena: Arena) -> None:
        self.log = log
        self.strongest = strongest if log is not None else Durability.NONE
        self.shape = shape_of(layout)
        self.logged = np.zeros(len(arena), np.bool_)
        self._arena = arena

    @property
    def failure(self) -> LogFailed | None:
        return self.log.failure if self.log is not None else None

    def require(self, durability: Durability) -> None:
        """Raise `BadRequest` when this shard cannot promise `durability`."""
        if durability > self.strongest:
            asked, have = (kind.name.lower().replace("_", "+") for kind in (durability, self.strongest))
            raise BadRequest(f"durability {asked} was asked for, this shard offers {have}: start it with --durability")

    def write(self, batch: Batch, traceparent: str = "") -> asyncio.Future[None]:
        """Hand a batch over; the future is done when it is durable, and fails as the log fails."""
        assert self.log is not None
        ticket = self.log.append(batch, asyncio.get_running_loop(), traceparent)
        assert ticket.future is not None
        return ticket.future

    def puts(
        self, keys: Keys, slots: Slots, *, clock: Words, valid: Slots, chains: Digests, sums: Words, session: int = 0
    ) -> Batch:
        """Whole blocks, as they lie in the pool."""
        data = self._arena.data
        payloads = [data[slot] for slot in slots.tolist()]
        return puts(keys, payloads, clock=clock, valid=valid, chain=chains, session=session, sums=sums)

    def appends(
        self, keys: Keys, slots: Slots, first: Slots, *, clock: int, valid: int, chain: bytes, session: int
    ) -> Batch:
        """Only the tokens from `first [n]` on of blocks that lie in the pool."""
        data = self._arena.data
        payloads = [
            self.shape.gather(data[slot], start, valid)
            for slot, start in zip(slots.tolist(), first.tolist(), strict=True)
        ]
        block_sums = np.array([self.shape.sum_of(data[slot], valid) for slot in slots.tolist()], np.uint64)
        return appends(
            keys,
            payloads,
            clock=clock,
            first=first,
            valid=valid,
            chain=chain,
            session=session,
            block_sums=block_sums,
        )

    def dropped(self, keys: Keys, kind: Kind, clock: int) -> asyncio.Future[None] | None:
        """`keys` are gone. Nobody needs to wait for it; a failure shows as the log's."""
        if self.log is None or not len(keys) or self.log.failure is not None:
            return None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # a recovery before there is a loop
            loop = None
        future = self.log.append(drops(keys, kind, clock=clock), loop).future
        if future is not None:
            future.add_done_callback(_seen)
        return future


def _seen(future: asyncio.Future[None]) -> None:
    """Look at the outcome, so that nobody complains that it was never looked at."""
    if not future.cancelled():
        future.exception()


def durability_of(durability: Durability) -> LogDurability:
    """How a log is set up for it; raises `BadRequest` for none."""
    if durability is Durability.NONE:
        raise BadRequest("durability none has no log")
    return LogDurability.LOG if durability is Durability.LOG else LogDurability.LOG_SYNC
