"""What the parts of a shard share: its state, and the few steps that several of them take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kvstore.clock import LamportClock
from kvstore.errors import DeadlineExceeded, PoolExhausted
from kvstore.ghosts import Ghosts
from kvstore.hotness import Hotness
from kvstore.keys import Keys
from kvstore.layout import Layout
from kvstore.log import Kind
from kvstore.membership.ownership import Ownership
from kvstore.messages import Located, Miss
from kvstore.meters import Meters
from kvstore.pool import Pool
from kvstore.session import Session, Sessions
from kvstore.shard.journal import Journal
from kvstore.shard.leases import Leases, Slots


@dataclass(slots=True)
class Call:
    """One operation: who asks, and until when (CLOCK_MONOTONIC) the answer is of use."""

    client: int
    deadline_ms: int
    until_ms: int
    trace_id: str | None = None
    traceparent: str = ""
    """Of the operation's own span."""

    def require_time(self, now_ms: int) -> None:
        """Raise `DeadlineExceeded` rather than answer late."""
        if now_ms >= self.until_ms:
            raise DeadlineExceeded(f"not done within its deadline of {self.deadline_ms} ms")


@dataclass(slots=True)
class Core:
    """The state of one shard; `now_ms` is CLOCK_MONOTONIC."""

    layout: Layout
    pool: Pool
    clock: LamportClock
    meters: Meters
    sessions: Sessions
    ghosts: Ghosts
    hotness: Hotness
    leases: Leases
    journal: Journal
    now_ms: Callable[[], int]
    ownership: Ownership = field(default_factory=Ownership)

    def reserve(self, n: int, *, one_run: bool, now_ms: int) -> Slots:
        """`Pool.reserve`, counted; what had to go is remembered and logged. Raises `PoolExhausted`, `NoRun`."""
        if n > len(self.pool):
            raise PoolExhausted(f"{n} blocks asked, the whole pool has {len(self.pool)}")
        try:
            slots = self.pool.reserve(n, one_run=one_run, now_ms=now_ms)
        finally:
            self._note_evicted()
        self.journal.forget(slots)
        self.meters.allocated(n, 1 + int(np.count_nonzero(np.diff(slots) != 1)))
        return slots

    def _note_evicted(self) -> None:
        for evicted in self.pool.drain_evicted():
            self.ghosts.add(evicted.keys, Miss.EVICTED)
            held = self.journal.holds(evicted.slots, evicted.keys)
            self.journal.forget(evicted.slots)
            self.journal.dropped(evicted.keys[held], Kind.EVICT, self.clock.now)
            self.meters.evicted_blocks[evicted.reason] += len(evicted.keys)
            self.meters.block_idle_before_evict_seconds.observe_many(evicted.idle_ms / 1000)

    def remove(self, slots: Slots, reason: Miss, kind: Kind) -> asyncio.Future[None] | None:
        """Published `slots` (distinct) leave the index, and whatever held them lets go; done once the log has it."""
        if not len(slots):
            return None
        keys = self.pool.keys(slots).copy()
        self.sessions.forget_slots(slots)
        self.pool.remove(slots)
        self.ghosts.add(keys, reason)
        held = self.journal.holds(slots, keys)
        self.journal.forget(slots)
        return self.journal.dropped(keys[held], kind, self.clock.now)

    def end_session(self, session: Session, *, expired: bool, forget: bool) -> None:
        """A session is over. Its tails go, since nobody else can use them; with `forget` all that only it held goes."""
        tails = np.array([tail.slot for tail in session.tails.values()], np.int64)
        meters = self.meters.session(session.session_class)
        meters.closed["expired" if expired else "closed"] += 1
        freed = self.sessions.end(session, expired=expired)
        gone = np.union1d(freed, tails) if forget else tails
        self.remove(gone, Miss.EXPIRED if expired else Miss.REMOVED, Kind.EXPIRE if expired else Kind.REMOVE)

    def locate(self, keys: Keys, slots: Slots, asked: int, lease: tuple[int, int] = (0, 0)) -> Located:
        """The answer for `slots` (−1: absent); rows from `asked` on were not asked for (no miss)."""
        found = slots >= 0
        at = np.where(found, slots, 0)
        miss = np.zeros(len(slots), np.int64)
        absent = np.flatnonzero(~found[:asked])
        if len(absent):
            miss[absent] = self.ghosts.why(keys[absent])
        return Located(
            slots,
            np.where(found, self.pool.generations(at), np.uint64(0)),
            np.where(found, self.pool.clocks(at), np.uint64(0)),
            np.where(found, self.pool.valid(at), 0),
            miss,
            *lease,
        )
