"""Sessions: handles on token chains, with a time to live, the slots they hold and their mutable tails.

A handle is a random 64-bit number, never an address: what it finds is matched by content. All times are milliseconds
of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import heapq
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvstore.errors import BadRequest, SessionUnknown

DEFAULT_TTL_MS = 1_800_000
MAX_TTL_MS = 366 * 24 * 3_600_000
MAX_CLASSES = 16
OTHER_CLASS = "other"
IDLE_MS = 60_000
REMEMBERED = 65_536
"""Ended sessions that are remembered, so that a return after expiry is told from a handle that never was."""

Slots = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint8]


class Holder(Protocol):
    """What sessions need of a pool."""

    def __len__(self) -> int: ...
    def hold(self, slots: Slots) -> None: ...
    def unhold(self, slots: Slots) -> Slots: ...


@dataclass(slots=True)
class Tail:
    """The current version of a partial block: where it is, and the digest after each token, `[valid, 24]`.

    After a recovery only the last digest is known; rows of zeros match nothing.
    """

    slot: int
    clock: int
    valid: int
    digests: Digests

    def agrees(self, digests: Digests) -> int:
        """How many of its tokens agree with the chain whose digests are given `[m, 24]`.

        A digest covers all tokens before it, so the last equal row decides.
        """
        rows = min(self.valid, len(digests))
        equal = np.flatnonzero((self.digests[:rows] == digests[:rows]).all(axis=1) & self.digests[:rows].any(axis=1))
        return int(equal[-1]) + 1 if len(equal) else 0


@dataclass(slots=True)
class Session:
    """One live session."""

    handle: int
    session_class: str
    ttl_ms: int
    opened_ms: int
    used_ms: int
    held: set[int] = field(default_factory=set)
    tails: dict[bytes, Tail] = field(default_factory=dict)
    """By tail key (32 bytes)."""
    looked_at_ms: int = 0
    """When it is looked at next, whether it has ended; 0: that is being done."""

    def ends_ms(self) -> int:
        return self.used_ms + self.ttl_ms

    def idle_after_ms(self) -> int:
        """Without a use for this long it counts as idle."""
        return min(IDLE_MS, self.ttl_ms // 2)

    def held_slots(self) -> Slots:
        return np.fromiter(sorted(self.held), np.int64, len(self.held))


@dataclass(frozen=True, slots=True)
class Ended:
    """A session that is no more."""

    session_class: str
    used_ms: int
    expired: bool
    returned: bool = False


@dataclass(frozen=True, slots=True)
class Return:
    """A session was asked for again after `gap_ms` without use; `alive` False: its TTL had ended."""

    session_class: str
    alive: bool
    gap_ms: int


@dataclass(slots=True)
class ClassFigures:
    """One session class at one moment; `idle_ms` `[sessions]` is the age of each one's last use."""

    active: int = 0
    idle: int = 0
    blocks: int = 0
    ttl_ms: int = 0
    idle_ms: list[int] = field(default_factory=list)


class _ClassHolds:
    """Slots that at least one session of a class holds."""

    def __init__(self, slots: int) -> None:
        self._counts = np.zeros(slots, np.int32)
        self.blocks = 0

    def add(self, slots: Slots) -> None:
        self._counts[slots] += 1
        self.blocks += int(np.count_nonzero(self._counts[slots] == 1))

    def drop(self, slots: Slots) -> None:
        self._counts[slots] -= 1
        self.blocks -= int(np.count_nonzero(self._counts[slots] == 0))


class Sessions:
    """All sessions of a shard. Not for several threads."""

    def __init__(self, pool: Holder) -> None:
        self._pool = pool
        self._live: dict[int, Session] = {}
        self._ended: OrderedDict[int, Ended] = OrderedDict()
        self._deadlines: list[tuple[int, int]] = []
        self._class_holds: dict[str, _ClassHolds] = {}
        self._class_ttl_ms: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._live.values())

    def open(self, session_class: str, ttl_ms: int, now_ms: int, *, handle: int = 0) -> Session:
        """A new session; `handle` 0 draws one. Raises `BadRequest` for a TTL out of range or a handle in use."""
        if not 1 <= ttl_ms <= MAX_TTL_MS:
            raise BadRequest(f"a session's ttl_ms must lie in 1 … {MAX_TTL_MS}, not {ttl_ms}")
        if handle in self._live:
            raise BadRequest("this session handle is in use")
        name = self._class_of(session_class)
        while not handle or handle in self._live:
            handle = secrets.randbits(64)
        session = Session(handle, name, ttl_ms, now_ms, now_ms)
        self._ended.pop(handle, None)
        self._live[handle] = session
        self._class_ttl_ms[name] = ttl_ms
        self.look_again(session, session.ends_ms())
        return session

    def look_again(self, session: Session, at_ms: int) -> None:
        """`expired` tells of it then, if it is over by then."""
        session.looked_at_ms = at_ms
        heapq.heappush(self._deadlines, (at_ms, session.handle))

    def find(self, handle: int, now_ms: int) -> Session | None:
        """The session, if it lives: a TTL that has ended counts before the sweeper comes by."""
        session = self._live.get(handle)
        return session if session is not None and session.ends_ms() > now_ms else None

    def lives(self, session: Session) -> bool:
        """Whether it has not been ended yet, whatever its TTL."""
        return self._live.get(session.handle) is session

    def require(self, handle: int, now_ms: int) -> Session:
        """As `find`, but raises `SessionUnknown`; marks the use."""
        session = self.find(handle, now_ms)
        if session is None:
            why = "its TTL ended" if self.has_expired(handle, now_ms) else "there is none with this handle"
            raise SessionUnknown(f"session {handle:#018x}: {why}; open a new one")
        session.used_ms = now_ms
        return session

    def has_expired(self, handle: int, now_ms: int) -> bool:
        """Whether it lived and its TTL ended (as far as the bounded memory reaches)."""
        live = self._live.get(handle)
        if live is not None:
            return live.ends_ms() <= now_ms
        ended = self._ended.get(handle)
        return ended is not None and ended.expired

    def came_back(self, handle: int, now_ms: int) -> Return | None:
        """A session is asked for again: what to count. None for one that is unknown, or was counted as expired."""
        live = self._live.get(handle)
        if live is not None and live.ends_ms() > now_ms:
            return Return(live.session_class, True, now_ms - live.used_ms)
        if live is not None:
            ended = Ended(live.session_class, live.used_ms, True)
        else:
            found = self._ended.get(handle)
            if found is None or not found.expired or found.returned:
                return None
            ended = found
        self._remember(handle, Ended(ended.session_class, ended.used_ms, True, True))
        return Return(ended.session_class, False, now_ms - ended.used_ms)

    def expired(self, now_ms: int) -> list[Session]:
        """Sessions whose TTL has ended and that still are to be ended (by `end`): each is told of once."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            at_ms, handle = heapq.heappop(self._deadlines)
            session = self._live.get(handle)
            if session is None or session.looked_at_ms != at_ms:
                continue  # closed, or opened again under its number since
            if session.ends_ms() > now_ms:
                self.look_again(session, session.ends_ms())
            else:
                session.looked_at_ms = 0
                due.append(session)
        return due

    def end(self, session: Session, *, expired: bool) -> Slots:
        """It is no more; the slots that only it held."""
        del self._live[session.handle]
        before = self._ended.get(session.handle)
        returned = before is not None and before.returned
        self._remember(session.handle, Ended(session.session_class, session.used_ms, expired, returned))
        slots = session.held_slots()
        self._class_holds[session.session_class].drop(slots)
        session.held.clear()
        session.tails.clear()
        return self._pool.unhold(slots) if len(slots) else slots

    # --- holds ----------------------------------------------------------------------------------------------------

    def hold(self, session: Session, slots: Slots) -> None:
        """The session holds `slots` (published), each once however often it is named."""
        fresh = np.fromiter({slot for slot in slots.tolist() if slot not in session.held}, np.int64)
        if len(fresh):
            session.held.update(fresh.tolist())
            self._pool.hold(fresh)
            self._class_holds[session.session_class].add(fresh)

    def moved(self, session: Session, old: Slots, new: Slots) -> None:
        """The pool gave the holds of `old` to `new` (a tail's next version)."""
        kept = np.array([slot in session.held for slot in old.tolist()], np.bool_)
        session.held.difference_update(old[kept].tolist())
        session.held.update(new[kept].tolist())
        holds = self._class_holds[session.session_class]
        holds.drop(old[kept])
        holds.add(new[kept])

    def forget_slots(self, slots: Slots) -> None:
        """`slots` are about to leave the pool's index: no session holds them, no tail lies in them."""
        gone = set(slots.tolist())
        for session in self._live.values():
            mine = session.held & gone
            if not mine:
                continue
            session.held -= mine
            freed = np.fromiter(mine, np.int64, len(mine))
            self._pool.unhold(freed)
            self._class_holds[session.session_class].drop(freed)
            for key in [key for key, tail in session.tails.items() if tail.slot in mine]:
                del session.tails[key]

    # --- figures --------------------------------------------------------------------------------------------------

    def figures(self, now_ms: int) -> dict[str, ClassFigures]:
        """By class: every class that was ever opened, so that a gauge goes to 0 rather than away."""
        found = {
            name: ClassFigures(blocks=self._class_holds[name].blocks, ttl_ms=ttl)
            for name, ttl in self._class_ttl_ms.items()
        }
        for session in self._live.values():
            figures = found[session.session_class]
            age = now_ms - session.used_ms
            figures.idle_ms.append(age)
            if age >= session.idle_after_ms():
                figures.idle += 1
            else:
                figures.active += 1
        return found

    def _class_of(self, name: str) -> str:
        """The class that a name stands for: one of at most `MAX_CLASSES`, or `other`."""
        if name not in self._class_holds:
            if len(self._class_holds) >= MAX_CLASSES - (OTHER_CLASS not in self._class_holds):
                name = OTHER_CLASS
            self._class_holds.setdefault(name, _ClassHolds(len(self._pool)))
        return name

    def _remember(self, handle: int, ended: Ended) -> None:
        self._ended[handle] = ended
        self._ended.move_to_end(handle)
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
