"""Write-through of one row: full blocks under their content keys, the partial one as its session's tail.

Runs on the client's loop. What could not be written waits, in order; the tail is only ever the newest.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kvstore.client import Client
from kvstore.errors import SessionUnknown, TailConflict
from kvstore.header import Bytes
from kvstore.integrations.transformers.columns import Columns
from kvstore.integrations.transformers.counts import Counts
from kvstore.integrations.transformers.history import Piece
from kvstore.keys import Keys
from kvstore.locations import Words
from kvstore.messages import Durability

_TRIES = 3


@dataclass(frozen=True, slots=True)
class Version:
    """The session's tail as the store has it: its block, and the clock of each column `[columns]`."""

    index: int
    parent: bytes
    clocks: Words


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how rows are written."""

    client: Client
    columns: Columns
    counts: Counts
    durability: Durability
    deadline_ms: int
    session_class: str


class RowWriter:
    """`session` 0: full blocks only. `version`: the tail that the row continues, as a match has found it."""

    def __init__(self, target: Target, session: int, version: Version | None = None) -> None:
        self.session = session
        self._to = target
        self._waiting: deque[Piece] = deque()
        self._tail: Piece | None = None
        self._version = version
        self._unsure = False
        """What the store has under our tail's keys is not known: whatever it is, it goes first."""

    @property
    def waiting_bytes(self) -> int:
        return sum(piece.data.nbytes for piece in self._waiting)

    def add(self, full: Iterable[Piece], tail: Piece | None) -> None:
        """What the next `write` is to bring over: blocks that became full, and what is behind them now."""
        self._waiting += full
        self._tail = tail if self.session else None

    async def write(self) -> None:
        """Bring everything over that waits. Raises a `StoreError`; what was not written goes on waiting."""
        while self._waiting:
            before = list(itertools.takewhile(lambda piece: not self._continues(piece), self._waiting))
            if before:
                await self._put(before)
                newest = before[-1]
            else:
                newest = self._waiting[0]
                await self._append(newest, self._to.columns.block(newest.digest, newest.index))
                before = [newest]
            for _ in before:
                self._waiting.popleft()
            await self._drop_passed(newest)
        if self._tail is not None:
            await self._drop_passed(self._tail)
            await self._append(self._tail, None)
            self._tail = None

    def _continues(self, piece: Piece) -> bool:
        version = self._version
        return version is not None and (version.index, version.parent) == (piece.index, piece.parent)

    async def _drop_passed(self, newest: Piece) -> None:
        """A tail that the row has gone by without ending it (its history was edited) would only lie there."""
        version = self._version
        if version is not None and not self._continues(newest) and newest.index >= version.index:
            await self._remove(self._to.columns.tail(version.parent, self.session, version.index))
            self._version = None

    async def _put(self, pieces: list[Piece]) -> None:
        digests = [piece.digest for piece in pieces]
        keys = self._to.columns.of(digests, pieces[0].index).reshape(-1, 4)
        data = np.stack([piece.data for piece in pieces], axis=1).reshape(len(keys), -1)
        for last in (False, True):
            try:
                await self._to.client.put(
                    keys,
                    data,
                    session=self.session,
                    durability=self._to.durability,
                    deadline_ms=self._to.deadline_ms,
                )
                break
            except SessionUnknown:
                if last:
                    raise
                await self._open_again()
        self._to.counts.puts += 1
        self._to.counts.written_blocks += len(keys)

    async def _append(self, piece: Piece, full_keys: Keys | None) -> None:
        """One version of the tail, or the full block that it ends in."""
        keys = self._to.columns.tail(piece.parent, self.session, piece.index)
        for attempt in range(1, _TRIES + 1):
            try:
                if self._unsure:
                    await self._remove(keys)
                    self._unsure, self._version = False, None
                await self._append_once(keys, piece, full_keys)
                return
            except (TailConflict, SessionUnknown) as error:
                self._to.counts.conflicts += isinstance(error, TailConflict)
                self._unsure = True
                if attempt == _TRIES:
                    raise
                if isinstance(error, SessionUnknown):
                    await self._open_again()
            except BaseException:
                self._unsure = True
                raise

    async def _append_once(self, keys: Keys, piece: Piece, full_keys: Keys | None) -> None:
        data: Bytes = piece.data
        done = await self._to.client.append(
            self.session,
            keys,
            data,
            valid=piece.valid,
            digests=piece.digests,
            expected=0 if self._version is None else self._version.clocks,
            full_keys=full_keys,
            durability=self._to.durability,
            deadline_ms=self._to.deadline_ms,
        )
        self._to.counts.appends += 1
        self._to.counts.written_blocks += len(keys)
        self._version = None if full_keys is not None else Version(piece.index, piece.parent, done.clock)

    async def _remove(self, keys: Keys) -> None:
        await self._to.client.remove(keys, durability=self._to.durability, deadline_ms=self._to.deadline_ms)

    async def _open_again(self) -> None:
        """The session ended on a shard (its TTL, or the shard's own end): it goes on under the same number."""
        handle = await self._to.client.open_session(
            self._to.session_class, number=self.session, renew=False, deadline_ms=self._to.deadline_ms
        )
        handle.release()
