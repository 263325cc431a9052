"""Tails: the mutable partial blocks of sessions. Every append writes a new version into a fresh slot.

An append that does not continue the version it names is refused (`TailConflict`); one whose answer was lost may be sent
again and is answered like the first time. While an append waits for the log its tails take no other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from kvstore.arena import Arena
from kvstore.errors import BadRequest, SessionUnknown, TailConflict
from kvstore.header import FLAG_TAIL
from kvstore.keys import Keys
from kvstore.log import Batch, Kind, drops
from kvstore.messages import Append, Miss, Published, TailMatch, TailMatched
from kvstore.session import Session, Tail
from kvstore.shard.claims import Claim, names
from kvstore.shard.core import Call, Core
from kvstore.shard.leases import Slots, Words
from kvstore.shard.pull import first_of_each, require_rows, require_staging, require_sums
from kvstore.shard.puts import published
from kvstore.shard.relog import existing_batch, give_way, take_back, until_logged

_NO_SLOTS: Slots = np.zeros(0, np.int64)
Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Flight:
    """An append between its pull and its publication; one row a (layer, head group)."""

    call: Call
    request: Append
    names: list[bytes]
    before: list[Tail | None]
    slots: Slots
    sums: Words
    clock: int
    target: Keys
    """The keys to publish under: the tails', or the full blocks'."""
    rows: Slots
    """Those that get a slot: all, but for full blocks that are here already."""
    logged: Claim | None = None
    """Once something of it was handed to the log."""
    old: Slots = field(default_factory=lambda: _NO_SLOTS)
    """Slots of the versions before, −1 for a first one."""
    pins: list[Slots] = field(default_factory=list)
    """Full blocks that are here already."""

    @property
    def ends(self) -> bool:
        """The tails end in their full blocks."""
        return self.target is not self.request.keys


class Tails:
    """The append side of a shard."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._busy: set[bytes] = set()
        self._refused: list[tuple[Keys, int]] = []
        """Tails, by session, that the log should hold and had no room for."""

    # --- appending --------------------------------------------------------------------------------------------------

    def begin(self, call: Call, request: Append, staging: Arena | None) -> _Flight | Published:
        """Everything before the log has answered; the answer itself for an append that was done before."""
        core, now_ms = self._core, self._core.now_ms()
        call.require_time(now_ms)
        self._require_columns(request)
        core.journal.require(request.durability)
        arena = require_staging(staging, request.staging, core.layout.block_bytes)
        session = core.sessions.require(request.session, now_ms)
        tail_names = names(request.keys)
        if self._busy.intersection(tail_names):
            raise TailConflict("another append to this tail is under way")
        again = self._done_before(session, request, tail_names)
        if again is not None:
            return again
        before = self._require_continuation(session, request, tail_names)
        full = request.full_keys if request.valid == core.layout.block_tokens else None
        target = request.keys if full is None else full
        found = core.pool.find(target) if full is not None else np.full(len(target), -1, np.int64)
        rows = np.flatnonzero(found < 0)
        sums = np.zeros(0, np.uint64)
        flight = _Flight(call, request, tail_names, before, _NO_SLOTS, sums, core.clock.tick(), target, rows)
        # Pinned until published: room must not be made by evicting what this very append found to be there.
        pinned = found[found >= 0]
        flight.pins.append(pinned)
        flight.old = np.array([-1 if tail is None else tail.slot for tail in before], np.int64)
        core.pool.pin(pinned)
        try:
            if len(rows):
                flight.slots = core.reserve(len(rows), one_run=False, now_ms=now_ms)
            flight.sums = core.pool.arena.pull(arena, request.staging[rows], flight.slots)
            require_sums(flight.sums, request.data_sums[rows])
            if request.durability:
                existing = pinned[~core.journal.logged[pinned]]
                batches = self._batches(flight, existing)
                if batches:
                    flight.logged = core.journal.write(Batch.joined(*batches), call.traceparent, existing)
        except BaseException:
            core.pool.unpin(pinned)
            core.pool.abandon(flight.slots)
            raise
        self._busy.update(tail_names)
        return flight

    def _require_columns(self, request: Append) -> None:
        rows, tokens = len(request.keys), self._core.layout.block_tokens
        if not rows or not request.session:
            raise BadRequest("an append has at least one row, and a session")
        require_rows(rows, staging=request.staging, data_sums=request.data_sums, expected=request.expected)
        if not 1 <= request.valid <= tokens:
            raise BadRequest(f"a tail has 1 … {tokens} valid tokens, not {request.valid}")
        if request.digests.shape != (request.valid, 24):
            raise BadRequest(f"digests have shape {request.digests.shape}, not [{request.valid}, 24]")
        if request.valid == tokens and request.full_keys is None:
            raise BadRequest("a tail that becomes full needs full_keys")
        if request.full_keys is not None:
            require_rows(rows, full_keys=request.full_keys)
        distinct = first_of_each(request.keys).all()
        if request.full_keys is not None:
            distinct = distinct and first_of_each(request.full_keys).all()
        if not distinct:
            raise BadRequest("an append names a key twice")

    def _done_before(self, session: Session, request: Append, tail_names: list[bytes]) -> Published | None:
        """The answer of a repeated append: every tail is just what it would become (or ended in its full block)."""
        none = _NO_SLOTS
        tails = [session.tails.get(name) for name in tail_names]
        same = [
            tail is not None and tail.valid == request.valid and tail.agrees(request.digests) == tail.valid
            for tail in tails
        ]
        if all(same) and not self._must_log(tails, request):
            return published(self._core, self._core.pool.find(request.keys), fresh=none)
        if request.valid < self._core.layout.block_tokens or request.full_keys is None:
            return None
        if any(tail is not None for tail in tails) or not request.expected.all():
            return None
        slots = self._core.pool.find(request.full_keys)
        if (slots < 0).any() or (request.durability and not self._core.journal.logged[slots].all()):
            return None
        return published(self._core, slots, fresh=none)

    def _must_log(self, tails: list[Tail | None], request: Append) -> bool:
        """The tails are as asked, but not in the log, and this time they have to be."""
        return bool(request.durability) and any(
            tail is not None and not self._core.journal.logged[tail.slot] for tail in tails
        )

    def _require_continuation(self, session: Session, request: Append, tail_names: list[bytes]) -> list[Tail | None]:
        """The version that each row continues, None for a first one; raises `TailConflict`."""
        before: list[Tail | None] = []
        for name, expected in zip(tail_names, request.expected.tolist(), strict=True):
            tail = session.tails.get(name)
            have = 0 if tail is None else tail.clock
            if have != expected:
                raise TailConflict(f"the tail is at version {have} (0: there is none), the append continues {expected}")
            if tail is not None and (tail.agrees(request.digests) < tail.valid or request.valid < tail.valid):
                raise TailConflict(
                    f"the append agrees with {tail.agrees(request.digests)} of the tail's {tail.valid} tokens: its "
                    "history was edited (remove the tail to begin anew)"
                )
            before.append(tail)
        first = np.array([tail is None for tail in before], np.bool_)
        if (self._core.pool.find(request.keys[first]) >= 0).any():
            raise TailConflict("a key of this append is in use and is no tail of this session")
        return before

    def _batches(self, flight: _Flight, existing: Slots) -> list[Batch]:
        """New tokens of tails that the log knows, else whole blocks; a full block ends its tail in the same unit."""
        core, request, rows = self._core, flight.request, flight.rows
        ends = flight.ends
        if ends:
            known = (flight.old >= 0) & core.journal.known[np.where(flight.old >= 0, flight.old, 0)]
        else:
            known = self._continues(flight)
        chain = request.digests[-1].tobytes()
        batches = []
        if not ends and known.any():
            first = np.array([tail.valid if tail is not None else 0 for tail in flight.before], np.int64)
            batches.append(
                core.journal.appends(
                    request.keys[known],
                    flight.slots[known],
                    first[known],
                    clock=flight.clock,
                    valid=request.valid,
                    chain=chain,
                    session=request.session,
                )
            )
        whole = np.arange(len(rows)) if ends else np.flatnonzero(~known)
        if len(whole):
            batches.append(
                core.journal.puts(
                    flight.target[rows[whole]],
                    flight.slots[whole],
                    clock=np.full(len(whole), flight.clock, np.uint64),
                    valid=np.full(len(whole), request.valid, np.int64),
                    chains=np.tile(request.digests[-1], (len(whole), 1)),
                    sums=flight.sums[whole],
                    session=request.session if not ends else 0,
                )
            )
        if ends:
            # They take the place of what the log held as tails.
            batches += [existing_batch(core, existing)] if len(existing) else []
            batches += [drops(request.keys[known], Kind.REMOVE, clock=flight.clock)] if known.any() else []
        return batches

    def _continues(self, flight: _Flight) -> Flags:
        """Rows of which the log needs only the new tokens: it holds those before, and they are the same bytes."""
        core, valid = self._core, flight.request.valid
        gather = core.journal.shape.gather
        found = np.zeros(len(flight.slots), np.bool_)
        for row, (tail, slot) in enumerate(zip(flight.before, flight.slots.tolist(), strict=True)):
            if tail is not None and tail.valid < valid and core.journal.logged[tail.slot]:
                before, after = core.pool.arena.payloads(np.array([tail.slot, slot], np.int64))
                found[row] = np.array_equal(gather(before, 0, tail.valid), gather(after, 0, tail.valid))
        return found

    async def finish(self, flight: _Flight) -> Published:
        """After the log has answered: publish the new versions, or take everything back."""
        core = self._core
        try:
            if flight.logged is not None and flight.ends:
                columns = self._columns(flight, len(flight.target))
                check = partial(self._require_may_publish, flight)
                await until_logged(core, flight, flight.target, columns[1], columns[2], check)
            elif flight.logged is not None:
                await flight.logged.future
            session = self._require_may_publish(flight)
        except BaseException as error:
            core.pool.abandon(flight.slots)
            self._undo_log(flight, error)
            raise
        finally:
            self._busy.difference_update(flight.names)
            core.journal.done(flight.logged)
            for slots in flight.pins:
                core.pool.unpin(slots)
        return self.publish(flight, session)

    def _require_may_publish(self, flight: _Flight) -> Session:
        core = self._core
        flight.call.require_time(core.now_ms())
        core.ownership.require(core.now_ms())
        core.ownership.require_home(flight.request.keys)
        return self._require_unchanged(flight)

    def _require_unchanged(self, flight: _Flight) -> Session:
        """The session lives and its tails are what they were when the append began."""
        session = self._core.sessions.find(flight.request.session, self._core.now_ms())
        if session is None:
            raise SessionUnknown("the session ended while the append was on its way")
        for name, tail in zip(flight.names, flight.before, strict=True):
            if session.tails.get(name) is not tail:
                raise TailConflict("the tail was removed while the append was on its way")
        return session

    def _undo_log(self, flight: _Flight, error: BaseException) -> None:
        """The log must end where the shard is: at the versions before, or at nothing."""
        core, request, claim = self._core, flight.request, flight.logged
        if claim is None or not claim.future.done() or claim.future.cancelled() or core.journal.failure is not None:
            return
        if claim.future.exception() is not None and not claim.again:
            return
        if flight.ends:
            take_back(core, flight, flight.target, error)
        absent = request.keys[core.pool.find(request.keys) < 0]
        core.journal.dropped(absent, Kind.REMOVE, flight.clock)
        live = core.pool.find(request.keys)
        self._put_back(live[(live >= 0) & (live == flight.old)], request.session)

    def _put_back(self, slots: Slots, session: int) -> None:
        """Log published versions of tails whole: behind what was logged and is not published, and was longer."""
        core = self._core
        if not len(slots):
            return
        core.journal.known[slots] = True
        core.pool.pin(slots)  # the log writes them from where they lie
        claim = core.journal.write(existing_batch(core, slots, session), existing=slots)
        claim.future.add_done_callback(lambda _: self._written(claim, session))

    def _written(self, claim: Claim, session: int) -> None:
        core, slots = self._core, claim.existing
        core.pool.unpin(slots)
        keys = core.pool.keys(slots)
        there = core.pool.find(keys) == slots
        if not claim.future.cancelled() and claim.future.exception() is None:
            there &= np.array([name not in claim.dropped for name in names(keys)], np.bool_)
            core.journal.noted(slots[there], keys[there])
        else:
            core.journal.logged[slots[there]] = False
            self._refused.append((keys[there], session))
        core.journal.done(claim)

    def settle(self) -> None:
        """Try again to put back what the log had no room for."""
        refused, self._refused = self._refused, []
        for keys, session in refused:
            slots = self._core.pool.find(keys)
            slots = slots[slots >= 0]
            self._put_back(slots[~self._core.journal.logged[slots]], session)

    def publish(self, flight: _Flight, session: Session) -> Published:
        """New versions of tails, or their full blocks."""
        answer = self._publish_full(flight, session) if flight.ends else None
        if answer is None:
            answer = self._publish_tails(flight, session)
        core = self._core
        count = len(flight.slots)
        core.meters.put_blocks += count
        core.meters.put_bytes += count * core.layout.block_bytes
        return answer

    def _publish_tails(self, flight: _Flight, session: Session) -> Published:
        core, request, now_ms = self._core, flight.request, self._core.now_ms()
        first = flight.old < 0
        for rows, old in ((np.flatnonzero(first), None), (np.flatnonzero(~first), flight.old[~first])):
            if not len(rows):
                continue
            slots, keys = flight.slots[rows], request.keys[rows]
            clock, valid, chains = self._columns(flight, len(rows))
            if old is None:
                core.pool.publish(slots, keys, clock, valid, chains, flight.sums[rows], flags=FLAG_TAIL, now_ms=now_ms)
                core.sessions.hold(session, slots)
            else:
                core.pool.replace(old, slots, keys, clock, valid, chains, flight.sums[rows], now_ms=now_ms)
                core.sessions.moved(session, old, slots)
                core.journal.superseded(old, slots, logged=False)
        if request.durability:
            core.journal.noted(flight.slots, request.keys)
        for name, slot in zip(flight.names, flight.slots.tolist(), strict=True):
            session.tails[name] = Tail(slot, flight.clock, request.valid, request.digests)
        return published(core, flight.slots, fresh=np.arange(len(flight.slots)))

    def _publish_full(self, flight: _Flight, session: Session) -> Published:
        """The full blocks under their content keys, then the tails leave."""
        core, request, now_ms = self._core, flight.request, self._core.now_ms()
        give_way(core, flight, flight.target, self._columns(flight, len(flight.target))[1])
        if len(flight.slots):
            columns, keys = self._columns(flight, len(flight.slots)), flight.target[flight.rows]
            core.pool.publish(flight.slots, keys, *columns, flight.sums, now_ms=now_ms)
            if request.durability:
                core.journal.noted(flight.slots, keys)
        slots = core.pool.find(flight.target)
        core.sessions.hold(session, slots[slots >= 0])
        self._end_tails(flight, session)
        return published(core, slots, fresh=flight.rows)

    def _end_tails(self, flight: _Flight, session: Session) -> None:
        core = self._core
        old = flight.old[flight.old >= 0]
        if flight.logged is not None:
            core.journal.forget(old)  # dropped in the same unit of the log
        core.remove(old, Miss.REMOVED, Kind.REMOVE)
        for name in flight.names:
            session.tails.pop(name, None)

    @staticmethod
    def _columns(flight: _Flight, count: int) -> tuple[Words, Slots, np.ndarray[tuple[int, int], np.dtype[np.uint8]]]:
        """Clock, valid tokens and chain of `count` rows."""
        chains = np.tile(np.frombuffer(flight.request.digests[-1].tobytes(), np.uint8), (count, 1))
        return np.full(count, flight.clock, np.uint64), np.full(count, flight.request.valid, np.int64), chains

    # --- matching ---------------------------------------------------------------------------------------------------

    def match(self, call: Call, request: TailMatch, now_ms: int) -> TailMatched:
        """How many tokens of the tail agree with the asker's chain; rows of one tail answer together."""
        core = self._core
        session = core.sessions.find(request.session, now_ms)
        agree, slots = 0, np.full(len(request.keys), -1, np.int64)
        if session is not None:
            session.used_ms = now_ms
            tails = [session.tails.get(name) for name in names(request.keys)]
            agree = min((0 if tail is None else tail.agrees(request.digests) for tail in tails), default=0)
            if agree:
                slots = np.array([tail.slot for tail in tails if tail is not None], np.int64)
        lease = (0, 0)
        if agree:
            core.pool.touch(slots, now_ms)
            if request.lease_ms > 0:
                lease = core.leases.grant(slots, request.lease_ms, call.client, now_ms)
        return TailMatched(agree, core.locate(request.keys, slots, len(slots), lease))
