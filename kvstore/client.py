"""The client: lookups, gets, puts and appends over all shards of a store, batched, each with a deadline.

`SyncClient` (`kvstore.sync`, also found here) is the same for plain code.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, SupportsInt

import numpy as np
import numpy.typing as npt

from kvstore import messages as m
from kvstore.addresses import addresses_of
from kvstore.clock import LamportClock
from kvstore.deadline import Deadline
from kvstore.errors import BadRequest, LeaseExpired, ShardUnavailable, StoreError
from kvstore.fetch import Fetch, Need
from kvstore.handle import SessionHandle
from kvstore.header import Bytes, Words
from kvstore.keys import Keys
from kvstore.layout import Layout
from kvstore.link import Link
from kvstore.locations import Blocks, Locations, State, buffer
from kvstore.shards import Shards
from kvstore.single import get_one
from kvstore.staging import Staged, Staging, as_blocks
from kvstore.traced import traced_methods
from kvstore.transport import Ints
from kvstore.transport.mapped import MappedTransport
from kvstore.writes import Writes

DEADLINE_MS = 5_000
HEARTBEAT_S = 1.0
STAGING_BYTES = 64 << 20
_LONGEST_NAP_S = 0.005


@traced_methods({name: f"kv.{name}" for name in ("lookup", "get", "put", "append", "match_tail", "remove")})
class Client:
    """Made by `connect`; an async context manager. For one event loop (`SyncClient` for plain code).

    Every operation has a deadline (`deadline_ms`, else the client's own) and raises a `StoreError` within it. Arrays
    are columns, one row a block. `verify` False leaves the sums of blocks unchecked.
    """

    def __init__(
        self, layout: Layout, *, deadline_ms: int, verify: bool, staging: Staging, enforce_need: bool = True
    ) -> None:
        self.layout = layout
        self.deadline_ms = deadline_ms
        self.verify = verify
        self.clock = LamportClock()
        self.staging = staging
        self.writes = Writes(staging)
        self._clock_lock = threading.Lock()
        self._enforce_need = enforce_need
        self._transport = MappedTransport()
        self._transport.register(staging.arena)
        self._shards: Shards | None = None
        self._beating: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        targets: str | Path | Sequence[str],
        layout: Layout,
        *,
        deadline_ms: int = DEADLINE_MS,
        staging_blocks: int | None = None,
        verify: bool = True,
        name: str = "",
        enforce_need: bool = True,
    ) -> Client:
        """Connect to every shard of a store: `"127.0.0.1:7600,127.0.0.1:7601"`, a sequence of such, or the path of a
        cluster file. `staging_blocks`: room for puts under way (default: 64 MiB).

        Raises `LayoutMismatch` naming the field, `ShardUnavailable`, `BadRequest` for targets that make no store.
        `enforce_need` False is a test's switch: gets then take blocks older than they need.
        """
        deadline = Deadline(deadline_ms)
        addresses = addresses_of(targets)
        blocks = staging_blocks or max(1, STAGING_BYTES // layout.slot_bytes)
        client = cls(
            layout, deadline_ms=deadline_ms, verify=verify, staging=Staging(layout, blocks), enforce_need=enforce_need
        )
        links = [
            Link(address, layout, client._transport, client.clock, name or f"pid-{os.getpid()}", client.writes.lost)
            for address in addresses
        ]
        try:
            await _all(link.ensure(deadline) for link in links)
            client._shards = Shards(links, layout)
        except BaseException:
            for link in links:
                await link.drop()
            client.staging.close()
            raise
        client._beating = asyncio.get_running_loop().create_task(client._beat())
        return client

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Report what was read, then let go of everything. May be called twice."""
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
            with contextlib.suppress(StoreError):
                await self.report(deadline_ms=200)
        await self.writes.close()
        if self._shards is not None:
            await self._shards.close()
            self._shards = None
        self._transport.close()
        self.staging.close()

    @property
    def shards(self) -> Shards:
        if self._shards is None:
            raise ShardUnavailable("the client is closed")
        return self._shards

    def buffer(self, n: int) -> Bytes:
        """Room for a get of `n` blocks, `[n, slot_bytes]`: what is read often should go to the same place."""
        return buffer(n, self.layout.slot_bytes)

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

        Without lease and session (and `counted` False) the mapped indexes answer and no shard is called. A lease makes
        what was found stay, and stay readable, for `lease_ms`; a session holds it. `counted` asks the shards even so:
        they then say why a key is missing, and count it.
        """
        keys = _columns(keys)
        deadline = self._deadline(deadline_ms)
        if lease_ms or int(session) or counted:
            asked = m.Lookup(keys, lease_ms, int(session), prefix, touch)
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
        return _cut(found) if prefix else found

    async def _lookup_by_call(self, keys: Keys, asked: m.Lookup, deadline: Deadline, trace: str) -> Locations:
        home = self.shards.home(keys)
        found = Locations.nowhere(keys, home)

        async def ask(number: int, rows: Ints | None) -> None:
            mine = asked if rows is None else replace(asked, keys=keys[rows])
            located: m.Located = await self.shards.links[number].call(mine, deadline, trace=trace)
            _enter(found, number, rows, located)

        await _all(ask(number, rows) for number, rows in self.shards.rows(home))
        return _cut(found) if asked.prefix else found

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
        quick = self.get_quick(what, out, min_clock=min_clock, min_valid=min_valid, verify=verify)
        if quick is not None:
            return quick
        deadline = self._deadline(deadline_ms)
        fetch = self.fetch(what, out, min_clock=min_clock, min_valid=min_valid, verify=verify)
        located = what if isinstance(what, Locations) else None
        nap = 0.0
        while True:
            try:
                if located is not None:
                    first, located = located, None
                    fetch.from_locations(first)
                else:
                    fetch.attempt()
            except ShardUnavailable:
                await self.shards.ensure(fetch.shards_waited_for(), deadline)
                continue
            if fetch.done or deadline.passed:
                return self.finish(fetch)
            await asyncio.sleep(min(nap, deadline.left_s))
            nap = min(_LONGEST_NAP_S, nap * 2 + 0.0001)

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
            keys = _columns(what)
            home = self.shards.home(keys)
        if out is None:
            out = np.empty((len(keys), self.layout.slot_bytes), np.uint8)
        else:
            self._require_room(out, len(keys))
        need = Need(min_clock, min_valid, self._enforce_need)
        verify = self.verify if verify is None else verify
        return Fetch(self.shards, keys, home, out, self.layout.block_bytes, verify=verify, need=need)

    def _require_room(self, out: Bytes, n: int) -> None:
        if out.shape != (n, self.layout.slot_bytes) or out.dtype != np.uint8 or not out.flags.c_contiguous:
            raise BadRequest(
                f"a get of {n} blocks goes into a contiguous uint8 array [{n}, {self.layout.slot_bytes}] "
                f"(Client.buffer), not {out.dtype} {list(out.shape)}"
            )

    def get_quick(
        self,
        what: Keys | Locations,
        out: Bytes | None,
        *,
        min_clock: int | Words = 0,
        min_valid: int | Ints = 0,
        verify: bool | None = None,
    ) -> Blocks | None:
        """One block at a known place, if it reads well at once; may run on any thread."""
        if not isinstance(what, Locations) or len(what.slot) != 1 or out is None:
            return None
        if not (isinstance(min_clock, int) and isinstance(min_valid, int) and min_clock == min_valid == 0):
            return None
        self._require_room(out, 1)
        found = get_one(
            self.shards, what, out, self.layout.block_bytes, verify=self.verify if verify is None else verify
        )
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

    def _saw(self, clock: int) -> None:
        """Blocks carry clocks too: what is done after a read is later than what was read."""
        if clock > self.clock.now:
            with self._clock_lock:
                self.clock.merge(clock)

    # --- leases ---------------------------------------------------------------------------------------------------

    async def renew(self, located: Locations, lease_ms: int, *, deadline_ms: int | None = None) -> None:
        """Extend the leases of a lookup (0: release them). Raises `LeaseExpired` where one had ended already."""
        await self._lease(located, m.Lease, lease_ms, 0, deadline_ms)
        if lease_ms == 0:
            located.leases.clear()
            located.until_ms[:] = 0

    async def release(self, located: Locations, *, deadline_ms: int | None = None) -> None:
        """End the leases of a lookup."""
        with contextlib.suppress(LeaseExpired):
            await self.renew(located, 0, deadline_ms=deadline_ms)

    async def pin(self, located: Locations, *, deadline_ms: int | None = None) -> None:
        """Turn the leases of a lookup into pins: for use in place. Counted; `unpin` as often."""
        await self._lease(located, m.Lease, 0, 1, deadline_ms)

    async def unpin(self, located: Locations, lease_ms: int = 0, *, deadline_ms: int | None = None) -> None:
        """One pin less; after the last the leases run for `lease_ms` more."""
        await self._lease(located, m.Lease, lease_ms, -1, deadline_ms)

    async def _lease(
        self, located: Locations, kind: type[m.Lease], lease_ms: int, pin: int, deadline_ms: int | None
    ) -> None:
        deadline = self._deadline(deadline_ms)

        async def ask(number: int, lease: int) -> None:
            message = kind(np.asarray([lease], np.uint64), lease_ms, pin)
            leased: m.Leased = await self.shards.links[number].call(message, deadline)
            until = int(leased.until_ms[0])
            rows = (located.shard == number) & (located.slot >= 0)
            located.until_ms[rows] = until
            if not until:
                raise LeaseExpired(f"the lease on shard {number} had ended already: look the keys up again")

        await _all(ask(number, lease) for number, lease in located.leases.items())

    # --- writing --------------------------------------------------------------------------------------------------

    async def stage(self, n: int, *, deadline_ms: int | None = None) -> Staged:
        """A run of the staging arena to fill in place, for a `put` to one shard. `unstage` it, or put it."""
        return await self.staging.take(n, self._deadline(deadline_ms))

    def unstage(self, run: Staged) -> None:
        self.staging.give(run)

    async def put(
        self,
        keys: Keys,
        blocks: npt.NDArray[Any] | Staged,
        *,
        valid: Ints | None = None,
        chains: npt.NDArray[np.uint8] | None = None,
        session: SupportsInt = 0,
        durability: m.Durability = m.Durability.NONE,
        one_run: bool = False,
        deadline_ms: int | None = None,
        trace: str = "",
    ) -> m.Published:
        """Publish blocks `[n, block_bytes]` (or `[n, *block_shape]`) under `keys` `[n, 4]`.

        Each shard pulls its part as one batch (several, where they are larger than the staging arena). `valid` and
        `chains` default to full blocks and the keys' own digests. After an error, what went to other shards or batches
        may have been published: a put of the same blocks again is harmless. Raises `PoolExhausted`, `NoRun`,
        `ChecksumMismatch`, `SessionUnknown`, `DeadlineExceeded`, `ShardUnavailable`, ….
        """
        keys = _columns(keys)
        n = len(keys)
        valid = np.full(n, self.layout.block_tokens, np.int64) if valid is None else valid
        chains = np.ascontiguousarray(keys).view(np.uint8).reshape(n, 32)[:, :24] if chains is None else chains
        data = blocks if isinstance(blocks, Staged) else as_blocks(blocks, self.layout)
        if not len(data) == len(valid) == len(chains) == n:
            raise BadRequest(f"{n} keys, {len(data)} blocks, {len(valid)} valid, {len(chains)} chains: not one a key")
        deadline = self._deadline(deadline_ms)
        answer = _unanswered(n)

        async def send(number: int, rows: Ints) -> None:
            part: Bytes | Staged = data if isinstance(data, Staged) or len(rows) == n else data[rows]

            def fill(run: Staged, data_sums: Words) -> m.Put:
                return m.Put(
                    keys[rows], run.slots, data_sums, valid[rows], chains[rows], int(session), durability, one_run
                )

            done = await self.writes.send(self.shards.links[number], part, fill, deadline, trace)
            answer.slot[rows], answer.generation[rows] = done.slot, done.generation
            answer.clock[rows], answer.existed[rows] = done.clock, done.existed

        await _all(send(number, rows) for number, rows in self._batches(keys, data, one_run))
        return answer

    def _batches(self, keys: Keys, data: Bytes | Staged, one_run: bool) -> list[tuple[int, Ints]]:
        """Rows by shard, cut so that a batch fits into the staging arena."""
        groups = self.shards.rows(self.shards.home(keys))
        everything = np.arange(len(keys))
        if isinstance(data, Staged):
            if len(groups) > 1:
                raise BadRequest("a staged run goes to one shard: these keys have several homes")
            return [(number, everything) for number, _ in groups]
        most = len(self.staging) if one_run else max(1, len(self.staging) // 2)
        cut = []
        for number, rows in groups:
            mine = everything if rows is None else rows
            if one_run and len(mine) > most:
                raise BadRequest(f"one run of {len(mine)} blocks does not fit into a staging arena of {most}")
            cut += [(number, mine[at : at + most]) for at in range(0, len(mine), most)]
        return cut

    async def append(
        self,
        session: SupportsInt,
        keys: Keys,
        blocks: npt.NDArray[Any],
        *,
        valid: int,
        digests: npt.NDArray[np.uint8],
        expected: Words | int = 0,
        full_keys: Keys | None = None,
        durability: m.Durability = m.Durability.NONE,
        deadline_ms: int | None = None,
        trace: str = "",
    ) -> m.Published:
        """New versions of a session's tails (see `messages.Append`); all `keys` must have one home, or are sent home by
        home, each an append of its own. Raises `TailConflict`, `SessionUnknown`, and what `put` raises."""
        keys = _columns(keys)
        n = len(keys)
        data = as_blocks(blocks, self.layout)
        seen = np.full(n, expected, np.uint64) if isinstance(expected, int) else np.asarray(expected, np.uint64)
        if not len(data) == len(seen) == n:
            raise BadRequest(f"{n} keys, {len(data)} blocks, {len(seen)} expected clocks: not one a key")
        deadline = self._deadline(deadline_ms)
        answer = _unanswered(n)

        async def send(number: int, rows: Ints | None) -> None:
            rows = np.arange(n) if rows is None else rows

            def fill(run: Staged, data_sums: Words) -> m.Append:
                full = None if full_keys is None else full_keys[rows]
                return m.Append(
                    int(session), keys[rows], run.slots, data_sums, valid, seen[rows], digests, full, durability
                )

            done = await self.writes.send(self.shards.links[number], data[rows], fill, deadline, trace)
            answer.slot[rows], answer.generation[rows] = done.slot, done.generation
            answer.clock[rows], answer.existed[rows] = done.clock, done.existed

        await _all(send(number, rows) for number, rows in self.shards.rows(self._tail_home(keys, full_keys)))
        return answer

    def _tail_home(self, keys: Keys, full_keys: Keys | None) -> Ints:
        home = self.shards.home(keys)
        if full_keys is not None and len(self.shards) > 1 and (self.shards.home(full_keys) != home).any():
            raise BadRequest("a tail and its full block must have one home: use a head-group placement for appends")
        return home

    async def match_tail(
        self,
        session: SupportsInt,
        keys: Keys,
        digests: npt.NDArray[np.uint8],
        *,
        lease_ms: int = 0,
        deadline_ms: int | None = None,
    ) -> tuple[int, Locations]:
        """How many tokens of the session's tails `keys` agree with the asker's own chain, and where they are."""
        keys = _columns(keys)
        deadline = self._deadline(deadline_ms)
        home = self.shards.home(keys)
        found = Locations.nowhere(keys, home)
        agree: list[int] = []

        async def ask(number: int, rows: Ints | None) -> None:
            mine = m.TailMatch(int(session), keys if rows is None else keys[rows], digests, lease_ms)
            matched: m.TailMatched = await self.shards.links[number].call(mine, deadline)
            agree.append(matched.agree)
            _enter(found, number, rows, matched.located)

        await _all(ask(number, rows) for number, rows in self.shards.rows(home))
        return min(agree, default=0), found

    async def remove(
        self, keys: Keys, *, durability: m.Durability = m.Durability.NONE, deadline_ms: int | None = None
    ) -> npt.NDArray[np.bool_]:
        """Take keys out of the store; whether each was there."""
        keys = _columns(keys)
        deadline = self._deadline(deadline_ms)
        found = np.zeros(len(keys), np.bool_)

        async def ask(number: int, rows: Ints | None) -> None:
            message = m.Remove(keys if rows is None else keys[rows], durability)
            removed: m.Removed = await self.shards.links[number].call(message, deadline)
            found[slice(None) if rows is None else rows] = removed.found

        await _all(ask(number, rows) for number, rows in self.shards.rows(self.shards.home(keys)))
        return found

    # --- sessions -------------------------------------------------------------------------------------------------

    async def open_session(
        self,
        session_class: str = "default",
        *,
        ttl_ms: int | None = None,
        number: int = 0,
        renew: bool = True,
        deadline_ms: int | None = None,
    ) -> SessionHandle:
        """A new session, or (with its `number`, from any process) one that goes on; a new one if its TTL had ended."""
        deadline = self._deadline(deadline_ms)
        handle = number or secrets.randbits(63) | 1
        if ttl_ms is None:
            ttl_ms = int(self.shards.links[0].facts.get("session_ttl_ms", m.OpenSession().ttl_ms))
        states = await _all(
            link.call(m.OpenSession(handle, session_class, ttl_ms, create=True), deadline) for link in self.shards.links
        )
        returned = number != 0 and all(state.alive for state in states)
        return SessionHandle(self, handle, session_class, ttl_ms, returned, renew)

    async def close_session(self, number: int, *, forget: bool = False, deadline_ms: int | None = None) -> None:
        deadline = self._deadline(deadline_ms)
        await _all(link.call(m.CloseSession(number, forget), deadline) for link in self.shards.links)

    async def renew_session(self, number: int, *, deadline_ms: int | None = None) -> None:
        """A sign of life: the session's TTL starts anew on every shard."""
        deadline = self._deadline(deadline_ms)
        nothing = m.TailMatch(number, np.zeros((0, 4), np.uint64), np.zeros((0, 24), np.uint8))
        await _all(link.call(nothing, deadline) for link in self.shards.links)

    # --- heartbeats -----------------------------------------------------------------------------------------------

    async def report(self, *, deadline_ms: int | None = None) -> None:
        """Tell every shard what was read and used there; done once a second by itself."""
        deadline = self._deadline(deadline_ms)
        shards = self.shards
        told = [
            link.call(tally.drain(), deadline)
            for link, tally in zip(shards.links, shards.tallies, strict=True)
            if link.up
        ]
        await asyncio.gather(*told, return_exceptions=True)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for link in self.shards.links:
                if not link.up:
                    with contextlib.suppress(StoreError):
                        await link.ensure(Deadline(HEARTBEAT_S * 1000))
            await self.report(deadline_ms=2_000)

    def _deadline(self, deadline_ms: int | None) -> Deadline:
        return Deadline(self.deadline_ms if deadline_ms is None else deadline_ms)


async def _all(calls: Any) -> list[Any]:
    """The results of all; the first failure after all have ended, so that nothing goes on behind the caller's back."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _unanswered(n: int) -> m.Published:
    return m.Published(np.zeros(n, np.int64), np.zeros(n, np.uint64), np.zeros(n, np.uint64), np.zeros(n, np.bool_))


def _columns(keys: Keys) -> Keys:
    if keys.ndim != 2 or keys.shape[1] != 4 or keys.dtype != np.uint64:
        raise BadRequest(f"keys are a uint64 array [n, 4], not {keys.dtype} {list(keys.shape)}")
    return keys


def _enter(found: Locations, number: int, rows: Ints | None, located: m.Located) -> None:
    at = slice(None) if rows is None else rows
    found.slot[at], found.generation[at], found.clock[at] = located.slot, located.generation, located.clock
    found.valid[at], found.miss[at] = located.valid, located.miss
    if located.lease:
        found.leases[number] = located.lease
        found.until_ms[at] = np.where(located.slot >= 0, located.lease_until_ms, 0)


def _cut(found: Locations) -> Locations:
    """Nothing counts after the first miss."""
    first = found.prefix
    found.slot[first + 1 :], found.until_ms[first + 1 :] = -1, 0
    return found


def __getattr__(name: str) -> Any:
    if name == "SyncClient":
        from kvstore.sync import SyncClient

        return SyncClient
    raise AttributeError(name)
