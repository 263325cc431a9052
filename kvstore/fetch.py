"""One get under way: what was found where, what is still to be read again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvstore.arena import headers_of
from kvstore.arguments import whole
from kvstore.checks import Verdict
from kvstore.clock import MAX_CLOCK
from kvstore.deadline import Deadline
from kvstore.errors import ChecksumMismatch, LeaseExpired
from kvstore.header import Bytes
from kvstore.keys import Keys
from kvstore.locations import LEASE_MARGIN_MS, Blocks, Locations, State
from kvstore.reader import Part, Verdicts, read, read_afar
from kvstore.shards import Shards
from kvstore.transport import Ints, Words

PIECE_BYTES = 32 << 20
PIECE_ROWS = 8_192
"""Of a get: about ten milliseconds of copying and summing (policy)."""


def piece_rows(slot_bytes: int) -> int:
    return max(64, min(PIECE_ROWS, PIECE_BYTES // slot_bytes))


@dataclass(frozen=True, slots=True)
class Need:
    """What a get's step needs of each block: at least this commit clock, at least so many valid tokens.

    `enforce` False (a test's switch) accepts older blocks, so that a checker of histories can be seen to fail.
    """

    clock: int | Words = 0
    valid: int | Ints = 0
    enforce: bool = True

    @classmethod
    def of(cls, clock: Any, valid: Any, n: int, *, enforce: bool) -> Need:
        """As a caller gives it, for `n` blocks. Raises `BadRequest`."""
        clocks = whole("min_clock", clock, n, most=MAX_CLOCK)
        counts = whole("min_valid", valid, n)
        return cls(
            clocks if isinstance(clocks, int) else clocks.astype(np.uint64),
            counts if isinstance(counts, int) else counts.astype(np.int64),
            enforce,
        )

    @property
    def some(self) -> bool:
        plain = isinstance(self.clock, int) and isinstance(self.valid, int)
        return self.enforce and not (plain and self.clock == 0 and self.valid == 0)


class Fetch:
    """Reads `keys` `[n, 4]` into `out` `[n, slot_bytes]`. Every `attempt` is synchronous and takes no lock, so that it
    may run on any thread; rows that lost a race stay `waiting` for another one."""

    def __init__(
        self, shards: Shards, keys: Keys, home: Ints, out: Bytes, block_bytes: int, *, verify: bool, need: Need
    ) -> None:
        self._shards = shards
        self._keys = keys
        self._home = home
        self._out = out
        self._block_bytes = block_bytes
        self._verify = verify
        self._need = need
        self._generations: Words = np.zeros(len(keys), np.uint64)
        self.state = np.full(len(keys), State.LATE, np.int8)
        self.waiting = np.ones(len(keys), np.bool_)

    def spans(self) -> list[slice]:
        """Rows of its pieces: what is read between two looks at the deadline."""
        each = piece_rows(self._out.shape[1])
        return [slice(at, at + each) for at in range(0, len(self._keys), each)] or [slice(0, 0)]

    def piece(self, rows: slice) -> Fetch:
        """A part of this get that can be driven by itself; its outcome is this one's, too."""
        clock, valid = self._need.clock, self._need.valid
        need = Need(
            clock if isinstance(clock, int) else clock[rows],
            valid if isinstance(valid, int) else valid[rows],
            self._need.enforce,
        )
        part = Fetch(
            self._shards,
            self._keys[rows],
            self._home[rows],
            self._out[rows],
            self._block_bytes,
            verify=self._verify,
            need=need,
        )
        part.state, part.waiting = self.state[rows], self.waiting[rows]
        return part

    @property
    def done(self) -> bool:
        return not self.waiting.any()

    def shards_waited_for(self) -> list[int]:
        return [int(number) for number in np.unique(self._home[self.waiting])]

    def from_locations(self, located: Locations) -> None:
        """The first attempt, at known places. Raises `LeaseExpired` where a lease has ended by our own clock."""
        if located.leases:
            self._require_leases(located)
        self._generations = located.generation.copy()
        parts: list[tuple[int, Part]] = []
        for number, rows in self._shards.rows(located.shard):
            slots = located.slot if rows is None else located.slot[rows]
            self._add_part(parts, number, rows, slots)
        self._read(parts)

    async def from_afar(self, located: Locations, rows: Ints, deadline: Deadline) -> None:
        """As `from_locations`, where some shards are reached over the network; `located` is of `rows` of this get.
        Raises `ShardUnavailable`, `LeaseExpired`."""
        if located.leases:
            self._require_leases(located)
        self._generations[rows] = located.generation
        parts: list[tuple[int, Part]] = []
        for number, mine in self._shards.rows(located.shard):
            at, slots = (rows, located.slot) if mine is None else (rows[mine], located.slot[mine])
            self._add_part(parts, number, at, slots)
        if not parts:
            return
        began = time.perf_counter()
        every = [Part(part.peer, part.rows, part.slots) for _, part in parts]
        try:
            verdicts = await read_afar(
                every,
                self._out,
                self._keys,
                self._generations,
                self._block_bytes,
                deadline,
                verify=self._verify,
                leased=lambda: still_leased(located),
            )
        except ChecksumMismatch:
            for number, _ in parts:
                self._shards.tallies[number].bad("corrupt", 1)
            raise
        seconds = time.perf_counter() - began
        for (number, part), done in zip(parts, every, strict=True):
            part.descriptors = done.descriptors
            self._take(number, part, verdicts, seconds)

    def attempt(self) -> None:
        """Look every waiting row up in the mapped indexes and read it. Raises `ShardUnavailable`."""
        everything = bool(self.waiting.all())
        parts: list[tuple[int, Part]] = []
        for number, rows in self._shards.rows(self._home):
            if not everything:
                rows = np.flatnonzero(self.waiting) if rows is None else rows[self.waiting[rows]]
                if not len(rows):
                    continue
            slots, generations = self._shards.find(number, self._keys if rows is None else self._keys[rows])
            if rows is None:
                self._generations = generations
            else:
                self._generations[rows] = generations
            self._add_part(parts, number, rows, slots)
        self._read(parts)

    def blocks(self) -> Blocks:
        return Blocks(self._out, self.state, self._block_bytes)

    def _add_part(self, parts: list[tuple[int, Part]], number: int, rows: Ints | None, slots: Ints) -> None:
        """Rows that were found are read; the others are misses for good."""
        found = slots >= 0
        if not found.all():
            everywhere = np.arange(len(slots)) if rows is None else rows
            missing = everywhere[~found]
            self.state[missing], self.waiting[missing] = State.ABSENT, False
            rows, slots = everywhere[found], slots[found]
        if len(slots):
            parts.append((number, Part(self._shards.peer(number), rows, slots)))

    def _read(self, parts: list[tuple[int, Part]]) -> None:
        if not parts:
            return
        began = time.perf_counter()
        try:
            verdicts = read(
                [part for _, part in parts],
                self._out,
                self._keys,
                self._generations,
                self._block_bytes,
                verify=self._verify,
            )
        except ChecksumMismatch:
            for number, part in parts:
                self._shards.tallies[number].bad("corrupt", 1 if len(part.slots) else 0)
            raise
        seconds = time.perf_counter() - began
        for number, part in parts:
            self._take(number, part, verdicts, seconds)

    def _take(self, number: int, part: Part, verdicts: Verdicts, seconds: float) -> None:
        """Enter what a part's copies are worth."""
        rows = slice(None) if part.rows is None else part.rows
        mine = verdicts[rows]
        good = mine == Verdict.OK
        tally = self._shards.tallies[number]
        if good.all():
            state = np.zeros(len(mine), np.int8)
            ok = len(mine)
        else:
            state = np.where(good, State.OK, np.where(mine == Verdict.TORN, State.TORN, State.RECYCLED)).astype(np.int8)
            ok = int(good.sum())
            tally.bad("torn", int((mine == Verdict.TORN).sum()))
            tally.bad("recycled", int((mine == Verdict.RECYCLED).sum()))
        tally.read(part.slots, self._generations[rows], ok, ok * self._block_bytes, part.descriptors, seconds)
        if self._need.some:
            self._too_old(state, rows)
        self.state[rows] = state
        self.waiting[rows] = state != State.OK

    def _too_old(self, state: Verdicts, rows: slice | Ints) -> None:
        headers = headers_of(self._out)[rows]
        clock, valid = self._need.clock, self._need.valid
        older = (headers["clock"] < _of(clock, rows)) | (headers["valid"] < _of(valid, rows))
        state[older & (state == State.OK)] = State.STALE

    def _require_leases(self, located: Locations) -> None:
        until = located.until_ms[located.until_ms > 0]
        left = int(until.min()) - LEASE_MARGIN_MS - time.monotonic_ns() // 1_000_000 if len(until) else 1
        if left <= 0:
            for number in located.leases:
                self._shards.tallies[number].bad("expired", int((located.shard == number).sum()))
            raise LeaseExpired(f"the lease on these {len(located)} blocks has ended: look them up again")


def still_leased(located: Locations) -> bool:
    """Whether everything that was found is leased, now."""
    until = located.until_ms[located.slot >= 0]
    if not located.leases or not len(until):
        return False
    return int(until.min()) - LEASE_MARGIN_MS > time.monotonic_ns() // 1_000_000


def _of(need: int | Ints | Words, rows: slice | Ints) -> int | Ints | Words:
    return need if isinstance(need, int) else need[rows]
