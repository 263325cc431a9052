"""What a shard writes to its log, and which of its slots the log knows."""

from __future__ import annotations

import asyncio
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvstore.arena import PoolArena
from kvstore.errors import BadRequest, LogFailed, LogFull
from kvstore.keys import Keys
from kvstore.layout import Layout
from kvstore.log import Batch, BlockShape, Kind, Ticket, appends, drops, puts
from kvstore.log import Durability as LogDurability
from kvstore.messages import Durability
from kvstore.shard.claims import NO_SLOTS, Claim, Claims, names

Slots = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
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
    """A log, or none; and what it holds of what is in the pool.

    `logged [slots]`: what lies in the slot is in the log. `known [slots]`: the log has something under the slot's key,
    perhaps an older version, so that whoever takes the key away must log that.
    """

    def __init__(self, log: ShardLog | None, strongest: Durability, layout: Layout, arena: PoolArena) -> None:
        self.log = log
        self.strongest = strongest if log is not None else Durability.NONE
        self.shape = shape_of(layout)
        self.logged = np.zeros(len(arena), np.bool_)
        self.known = np.zeros(len(arena), np.bool_)
        self._arena = arena
        self._claims = Claims()
        self._owed: dict[bytes, Kind] = {}
        """Keys that are gone, though the log had no room to be told."""
        self._last_drop: asyncio.Future[None] | None = None

    @property
    def failure(self) -> LogFailed | None:
        return self.log.failure if self.log is not None else None

    def require(self, durability: Durability) -> None:
        """Raise `BadRequest` when this shard cannot promise `durability`."""
        if durability > self.strongest:
            asked, have = (kind.name.lower().replace("_", "+") for kind in (durability, self.strongest))
            raise BadRequest(f"durability {asked} was asked for, this shard offers {have}: start it with --durability")

    # --- storing ----------------------------------------------------------------------------------------------------

    def write(self, batch: Batch, traceparent: str = "", existing: Slots = NO_SLOTS) -> Claim:
        """Hand a batch over, `existing`: slots of published blocks in it. The keys that it stores are claimed until
        `done`."""
        claim = Claim(self._hand_over(batch, traceparent), set(), existing)
        self._claims.add(claim, _stored(batch))
        return claim

    def write_again(self, claim: Claim, batch: Batch, traceparent: str, existing: Slots) -> None:
        """As `write`, for a claim that runs: what was dropped meanwhile is in `batch`, or no longer wanted."""
        claim.future, claim.existing, claim.again = self._hand_over(batch, traceparent), existing, True
        claim.dropped.clear()
        self._claims.add(claim, _stored(batch) - claim.names)

    def _hand_over(self, batch: Batch, traceparent: str) -> asyncio.Future[None]:
        assert self.log is not None
        ticket = self.log.append(batch, asyncio.get_running_loop(), traceparent)
        assert ticket.future is not None
        return ticket.future

    def done(self, claim: Claim | None) -> None:
        """Published, or taken back."""
        if claim is not None:
            self._claims.end(claim)

    def noted(self, slots: Slots, keys: Keys) -> None:
        """What lies in published `slots` under `keys` is in the log, and the newest that it has of them."""
        self.logged[slots] = True
        self.known[slots] = True
        if self._owed:
            for name in names(keys):
                self._owed.pop(name, None)

    def forget(self, slots: Slots) -> None:
        """They hold nothing any more, or something new."""
        self.logged[slots] = False
        self.known[slots] = False

    def superseded(self, old: Slots, new: Slots, *, logged: bool) -> None:
        """`new` slots hold the next versions of tails."""
        self.logged[new] = logged
        self.known[new] = self.known[old] | logged
        self.forget(old)

    def puts(
        self, keys: Keys, slots: Slots, *, clock: Words, valid: Slots, chains: Digests, sums: Words, session: int = 0
    ) -> Batch:
        """Whole blocks, as they lie in the pool."""
        payloads = self._arena.payloads(slots)
        return puts(keys, payloads, clock=clock, valid=valid, chain=chains, session=session, sums=sums)

    def appends(
        self, keys: Keys, slots: Slots, first: Slots, *, clock: int, valid: int, chain: bytes, session: int
    ) -> Batch:
        """Only the tokens from `first [n]` on of blocks that lie in the pool."""
        blocks = self._arena.payloads(slots)
        payloads = [self.shape.gather(block, start, valid) for block, start in zip(blocks, first.tolist(), strict=True)]
        block_sums = np.array([self.shape.sum_of(block, valid) for block in blocks], np.uint64)
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

    # --- dropping ---------------------------------------------------------------------------------------------------

    def holds(self, slots: Slots, keys: Keys) -> Flags:
        """Of which published blocks the log has something, or is about to."""
        found: Flags = self.known[slots].copy()
        if len(self._claims) or self._owed:
            for row, name in enumerate(names(keys)):
                found[row] |= name in self._claims or name in self._owed
        return found

    def dropped(self, keys: Keys, kind: Kind, clock: int) -> asyncio.Future[None] | None:
        """`keys` are gone. Nobody needs to wait for it: what the log has no room for now is `settle`d later; any other
        failure shows as the log's."""
        if self.log is None or not len(keys) or self.log.failure is not None:
            return None
        if len(self._claims) or self._owed:
            for name in names(keys):
                self._owed.pop(name, None)
                self._claims.drop(name)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # a recovery before there is a loop
            loop = None
        future = self.log.append(drops(keys, kind, clock=clock), loop).future
        if future is not None:
            future.add_done_callback(lambda answered: self._answered(answered, keys, kind))
            self._last_drop = future
        return future

    def _answered(self, future: asyncio.Future[None], keys: Keys, kind: Kind) -> None:
        if not future.cancelled() and isinstance(future.exception(), LogFull):
            self._owed.update(dict.fromkeys(names(keys), kind))

    def settle(self, clock: int) -> None:
        """Tell the log again what it had no room for: a key that is gone must not come back by a recovery."""
        for kind in set(self._owed.values()):
            due = [name for name, owed in self._owed.items() if owed == kind and name not in self._claims]
            self.dropped(_keys(due), kind, clock)

    async def gone(self, keys: Keys, clock: int) -> None:
        """Until the log is sure to hold none of `keys`, which are not in the pool. Raises as the log does."""
        if self._last_drop is not None and not self._last_drop.done():
            await asyncio.wait({self._last_drop})  # it may be theirs, and those before it are answered before
        due = [name for name in names(keys) if name in self._owed]
        future = self.dropped(_keys(due), Kind.REMOVE, clock)
        if future is not None:
            await future


def _stored(batch: Batch) -> set[bytes]:
    kinds = batch.headers["kind"]
    return set(names(batch.headers["key"][(kinds == Kind.PUT) | (kinds == Kind.APPEND)]))


def _keys(found: list[bytes]) -> Keys:
    return np.frombuffer(b"".join(found), np.uint64).reshape(-1, 4)


def durability_of(durability: Durability) -> LogDurability:
    """How a log is set up for it; raises `BadRequest` for none."""
    if durability is Durability.NONE:
        raise BadRequest("durability none has no log")
    return LogDurability.LOG if durability is Durability.LOG else LogDurability.LOG_SYNC
