"""The reading half of a client: lookups, gets, leases."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from dataclasses import replace
from typing import SupportsInt

import numpy as np

from kvstore import messages as m
from kvstore.afar import Returns, get_afar, get_at_once
from kvstore.arguments import MOST_MS, key_columns, room_for, session_number, whole_number
from kvstore.client_base import ClientBase, all_of, batches, cut, enter
from kvstore.deadline import Deadline
from kvstore.errors import BadRequest, LeaseExpired, ShardUnavailable
from kvstore.fetch import Fetch, Need, piece_rows
from kvstore.header import Bytes, Words
from kvstore.keys import Keys
from kvstore.locations import Blocks, Locations, State
from kvstore.single import get_one
from kvstore.transport import Ints
from kvstore.whole import get_whole

_LONGEST_NAP_S = 0.005


class Reads(ClientBase):
    """Where blocks are, and blocks."""

    @functools.cached_property
    def returns(self) -> Returns:
        """Leases that a get took for itself, on their way back."""
        return Returns(self)

    # --- finding --------------------------------------------------------------------------------------------------

    async def lookup(
        self,
        keys: Keys,
        *,
        lease_ms: int = 0,
        session: SupportsInt = 0,
        prefix: bool = False,
        counted: bool = False,
        touch: bool = True,
        deadline_ms: int | None = None,
        trace: str = "",
    ) -> Locations:
        """Where `keys` `[n, 4]` are. `prefix`: only up to the first miss.

        Without lease and session (and `counted` False) the mapped indexes answer and no shard is called (one that is
        reached over the network always is). A lease makes what was found stay, and stay readable, for `lease_ms`; a
        session holds it. `counted` asks the shards even so: they then say why a key is missing, and count it.
        """
        keys = key_columns(keys)
        deadline = self._deadline(deadline_ms)
        holder, lease_ms = session_number(session), whole_number("lease_ms", lease_ms, most=MOST_MS)
        if lease_ms or holder or counted or self.shards.afar:
            asked = m.Lookup(keys, lease_ms, holder, bool(prefix), bool(touch))
            return await self._lookup_by_call(keys, asked, deadline, trace)
        home = self.shards.home(keys)
        try:
            return self._lookup_by_index(keys, home, prefix)
        except ShardUnavailable:
            await self.shards.ensure(np.unique(home).tolist(), deadline)
            return self._lookup_by_index(keys, home, prefix)

    def _lookup_by_index(self, keys: Keys, home: Ints, prefix: bool) -> Locations:
        found = Locations.nowhere(keys, home)
        for number, rows in self.shards.rows(home):
            if rows is None:
                found.slot, found.generation = self.shards.find(number, keys)
            else:
                found.slot[rows], found.generation[rows] = self.shards.find(number, keys[rows])
        found.miss = np.where(found.slot < 0, int(m.Miss.ABSENT), 0)
        return cut(found) if prefix else found

    async def _lookup_by_call(self, keys: Keys, asked: m.Lookup, deadline: Deadline, trace: str) -> Locations:
        home = self.shards.home(keys)
        found = Locations.nowhere(keys, home)

        async def ask(number: int, rows: Ints | None) -> None:
            link = self.shards.links[number]
            for part in batches(rows, len(keys)):
                mine = asked if part is None else replace(asked, keys=keys[part])
                sent_ms = _monotonic_ms()
                located: m.Located = await link.call(mine, deadline, trace=trace)
                if located.lease and link.afar:
                    located = replace(located, lease_until_ms=sent_ms + min(asked.lease_ms, m.MAX_LEASE_MS))
                enter(found, number, part, located)
                if asked.prefix and (located.slot < 0).any():
                    return

        await all_of(ask(number, rows) for number, rows in self.shards.rows(home))
        return cut(found) if asked.prefix else found

    # --- reading --------------------------------------------------------------------------------------------------

    async def get(
        self,
        what: Keys | Locations,
        out: Bytes | None = None,
        *,
        min_clock: int | Words = 0,
        min_valid: int | Ints = 0,
        verify: bool | None = None,
        deadline_ms: int | None = None,
    ) -> Blocks:
        """The blocks of keys `[n, 4]`, or at known locations, into `out` `[n, slot_bytes]` (see `buffer`).

        Blocks that are not there, or could not be read undisturbed within the deadline, are misses: never bytes.
        `min_clock`, `min_valid` (one for all or a column): what the step needs; while a block is older it is read again
        until the deadline. Raises `LeaseExpired`, `ChecksumMismatch` (damaged bytes), `ShardUnavailable`.
        """
        deadline = self._deadline(deadline_ms)
        if self.shards.afar:
            return await self._get_afar(what, out, min_clock, min_valid, verify, deadline)
        quick = self.get_quick(what, out, min_clock=min_clock, min_valid=min_valid, verify=verify)
        if quick is not None:
            return quick
        fetch = self.fetch(what, out, min_clock=min_clock, min_valid=min_valid, verify=verify)
        known = what if isinstance(what, Locations) else None
        pieces = [(fetch.piece(rows), None if known is None else known.rows(rows)) for rows in fetch.spans()]
        nap = 0.0
        while True:
            try:
                await self._attempt(pieces, deadline)
            except ShardUnavailable:
                await self.shards.ensure(fetch.shards_waited_for(), deadline)
                if any(link.afar for link in self.shards.links):  # it came back over the network
                    return await self._get_afar(what, out, min_clock, min_valid, verify, deadline)
                continue
            if fetch.done or deadline.passed:
                return self.finish(fetch)
            await asyncio.sleep(min(nap, deadline.left_s))
            nap = min(_LONGEST_NAP_S, nap * 2 + 0.0001)

    @staticmethod
    async def _attempt(pieces: list[tuple[Fetch, Locations | None]], deadline: Deadline) -> None:
        """One attempt at all that is missing, at known places first; between two pieces the deadline may end it."""
        for at, (piece, known) in enumerate(pieces):
            if piece.done:
                continue
            pieces[at] = piece, None
            if known is not None:
                piece.from_locations(known)
            else:
                piece.attempt()
            if len(pieces) > 1:
                if deadline.passed:
                    return
                await asyncio.sleep(0)

    async def _get_afar(
        self,
        what: Keys | Locations,
        out: Bytes | None,
        min_clock: int | Words,
        min_valid: int | Ints,
        verify: bool | None,
        deadline: Deadline,
    ) -> Blocks:
        if isinstance(what, Locations) and out is not None and len(what) and _needs_nothing(min_clock, min_valid):
            room_for(out, len(what), self.layout.slot_bytes)
            sums = self.verify if verify is None else verify
            found = await get_at_once(self.shards, what, out, self.layout.block_bytes, deadline, verify=sums)
            if found is not None:
                self._saw(found[1])
                return found[0]
        fetch = self.fetch(what, out, min_clock=min_clock, min_valid=min_valid, verify=verify)
        keys, located = (what.keys, what) if isinstance(what, Locations) else (what, None)
        await get_afar(self, fetch, keys, located, deadline)
        return self.finish(fetch)

    def fetch(
        self,
        what: Keys | Locations,
        out: Bytes | None = None,
        *,
        min_clock: int | Words = 0,
        min_valid: int | Ints = 0,
        verify: bool | None = None,
    ) -> Fetch:
        """A get that the caller drives himself (`attempt`, then `finish`); may run on any thread."""
        if isinstance(what, Locations):
            keys, home = what.keys, what.shard
        else:
            keys = key_columns(what)
            home = self.shards.home(keys)
        if out is None:
            out = np.empty((len(keys), self.layout.slot_bytes), np.uint8)
        else:
            room_for(out, len(keys), self.layout.slot_bytes)
        need = Need.of(min_clock, min_valid, len(keys), enforce=self._enforce_need)
        verify = self.verify if verify is None else verify
        return Fetch(self.shards, keys, home, out, self.layout.block_bytes, verify=verify, need=need)

    def get_quick(
        self,
        what: Keys | Locations,
        out: Bytes | None,
        *,
        min_clock: int | Words = 0,
        min_valid: int | Ints = 0,
        verify: bool | None = None,
    ) -> Blocks | None:
        """Blocks at known places in one shard, if all read well at once; may run on any thread."""
        if not isinstance(what, Locations) or not len(what.slot) or out is None or self.shards.afar:
            return None
        if not (isinstance(min_clock, int) and isinstance(min_valid, int) and min_clock == min_valid == 0):
            return None
        count = len(what.slot)
        if count > piece_rows(self.layout.slot_bytes):
            return None
        room_for(out, count, self.layout.slot_bytes)
        quick = get_one if count == 1 else get_whole
        found = quick(self.shards, what, out, self.layout.block_bytes, verify=self.verify if verify is None else verify)
        if found is None:
            return None
        self._saw(found[1])
        return found[0]

    def finish(self, fetch: Fetch) -> Blocks:
        """The answer of a get; what the blocks' clocks say is merged into ours."""
        blocks = fetch.blocks()
        good = blocks.state == State.OK
        if good.any():
            clocks = blocks.headers["clock"]
            self._saw(int((clocks if good.all() else clocks[good]).max()))
        return blocks

    # --- leases ---------------------------------------------------------------------------------------------------

    async def renew(self, located: Locations, lease_ms: int, *, deadline_ms: int | None = None) -> None:
        """Extend the leases of a lookup (0: release them). Raises `LeaseExpired` where one had ended already."""
        await self._lease(located, lease_ms, 0, deadline_ms)
        if lease_ms == 0:
            located.leases.clear()
            located.until_ms[:] = 0

    async def release(self, located: Locations, *, deadline_ms: int | None = None) -> None:
        """End the leases of a lookup."""
        with contextlib.suppress(LeaseExpired):
            await self.renew(located, 0, deadline_ms=deadline_ms)

    async def pin(self, located: Locations, *, deadline_ms: int | None = None) -> None:
        """Turn the leases of a lookup into pins: for use in place. Counted; `unpin` as often."""
        await self._lease(located, 0, 1, deadline_ms)

    async def unpin(self, located: Locations, lease_ms: int = 0, *, deadline_ms: int | None = None) -> None:
        """One pin less; after the last the leases run for `lease_ms` more."""
        await self._lease(located, lease_ms, -1, deadline_ms)

    async def _lease(self, located: Locations, lease_ms: int, pin: int, deadline_ms: int | None) -> None:
        if not isinstance(located, Locations):
            raise BadRequest(f"leases are those of a lookup's answer, not of a {type(located).__name__}")
        lease_ms, deadline = whole_number("lease_ms", lease_ms, most=MOST_MS), self._deadline(deadline_ms)

        async def ask(number: int, leases: list[int]) -> None:
            message = m.Lease(np.asarray(leases, np.uint64), lease_ms, pin)
            link, sent_ms = self.shards.links[number], _monotonic_ms()
            leased: m.Leased = await link.call(message, deadline)
            until = int(leased.until_ms.min())
            if until and link.afar and lease_ms:
                until = sent_ms + min(lease_ms, m.MAX_LEASE_MS)
            rows = (located.shard == number) & (located.slot >= 0)
            located.until_ms[rows] = until
            if not until:
                raise LeaseExpired(f"the lease on shard {number} had ended already: look the keys up again")

        await all_of(ask(number, leases) for number, leases in located.leases.items())


def _monotonic_ms() -> int:
    """Our own clock: another host's means nothing here, so a lease from there is counted from when it was asked for."""
    return time.monotonic_ns() // 1_000_000


def _needs_nothing(min_clock: int | Words, min_valid: int | Ints) -> bool:
    return isinstance(min_clock, int) and isinstance(min_valid, int) and min_clock == min_valid == 0
