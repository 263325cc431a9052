"""A shard's pool, as its client reads it by NIXL."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np

from kvstore.deadline import Deadline
from kvstore.errors import DeadlineExceeded, ShardUnavailable, StoreError
from kvstore.header import Bytes
from kvstore.index import Index
from kvstore.layout import Layout
from kvstore.transport import Ints, Words
from kvstore.transport.nixl.agent import Disconnected, own_name
from kvstore.transport.nixl.landing import Landing, Run
from kvstore.transport.nixl.owner import Make, Moved, Owner
from kvstore.transport.nixl.reads import Pending, Reads
from kvstore.transport.nixl.regions import Region, Regions
from kvstore.transport.nixl.remote import RemotePool
from kvstore.transport.nixl.split import Data, SplitPool

Steps = Generator["Pending | Future[Moved]", Moved, int]
"""Waits for reads one after the other; its value is how many descriptors they took."""


class Ended(Protocol):
    """Told once when a peer is closed; `goodbye`: nothing was wrong."""

    def __call__(self, *, goodbye: bool) -> None: ...


SYNC_READ_S = 30.0
"""How long the plain calls wait, whose callers have told no deadline."""
HERE_WORDS = 64
"""So many generations are looked at where they are asked for; more are a list that takes its time (policy)."""
TURN_S = 10e-3
"""Gets that are all done at once let the loop go on so often: its heartbeats above all (policy: as a mapped get's)."""
SLICE_S = 50e-6
"""So long a read that was posted here is looked after between two turns of the loop; one without work takes 10 µs
(measured)."""


class NixlPeer:
    """See `Peer`; `index` is always None. States: connected, then `lost` for good: the link makes a new one."""

    def __init__(self, facts: dict[str, Any], owner: Owner, regions: Regions, landing: Landing, ended: Ended) -> None:
        self.facts = facts
        self.index: Index | None = None
        self._named = str(facts["nixl"]["agent"])
        self._pool = _pool_of(facts, own_name(self._named), landing.slot_bytes)
        self._who = f"shard {facts['shard']} ({facts['address']})"
        self._owner = owner
        self._reads = Reads(owner)
        self._turned = time.monotonic()
        self._regions = regions
        self._landing = landing
        self._ended = ended
        self.when_dead: Callable[[], None] | None = None
        self.dead = False
        """True once its process is known to have ended."""

    async def meet(self, metadata: bytes, deadline: Deadline) -> None:
        """Load the shard's metadata, and read a word of its pool: the way there is one that works."""
        await asyncio.wrap_future(self._owner.meet(self._named, self._pool.agent, metadata))
        try:
            await asyncio.wrap_future(self._owner.submit(self._pool.prepare))
            await self.fetch_generations(np.zeros(1, np.int64), deadline)
            if self._pool.split:  # the way to the data is another than that to the headers
                one = np.empty((1, self._landing.slot_bytes), np.uint8)
                await self.fetch(np.zeros(1, np.int64), None, one, deadline)
        except BaseException:
            self.close()
            raise

    # --- reading, for a loop ----------------------------------------------------------------------------------------

    def fetch_soon(self, slots: Ints, out: Bytes, deadline: Deadline) -> int | Coroutine[Any, Any, int]:
        """See `Distant`."""
        begun = self._straight(slots, None, out) if len(slots) else None
        if isinstance(begun, Moved) and time.monotonic() - self._turned < TURN_S:
            return begun.descriptors
        return self._fetched(begun, slots, out, deadline)

    async def _fetched(self, begun: Moved | Pending | None, slots: Ints, out: Bytes, deadline: Deadline) -> int:
        if begun is None:
            return await self.fetch(slots, None, out, deadline)
        if isinstance(begun, Moved):
            await asyncio.sleep(0)
            self._turned = time.monotonic()
            return begun.descriptors
        return (await self._outcome(begun, deadline)).descriptors

    async def fetch(self, slots: Ints, rows: Ints | None, out: Bytes, deadline: Deadline) -> int:
        """`Peer.read` without blocking the loop. Raises `ShardUnavailable`, also where the deadline has passed."""
        return await self._drive(self._copy(slots, rows, out), deadline)

    async def fetch_generations(self, slots: Ints, deadline: Deadline) -> Words:
        """`Peer.generations` without blocking the loop."""
        found = np.zeros(len(slots), np.uint64)
        await self._drive(self._look(slots, found), deadline)
        return found

    async def _drive(self, steps: Steps, deadline: Deadline) -> int:
        moved: Any = None
        with contextlib.closing(steps):
            while True:
                try:
                    waited = steps.send(moved)
                except StopIteration as ended:
                    return int(ended.value)
                moved = await self._outcome(waited, deadline)

    async def _outcome(self, waited: Pending | Future[Moved], deadline: Deadline) -> Moved:
        future = waited.future if isinstance(waited, Pending) else waited
        try:
            if not (isinstance(waited, Pending) and waited.here and await self._soon(waited, deadline)):
                async with asyncio.timeout(deadline.left_s):
                    await asyncio.shield(asyncio.wrap_future(future))
            return self._reads.learned(future.result())
        except TimeoutError:
            self._give_up(waited, self._silent(f"{deadline.allowed_ms:g} ms"))
            raise self._silent(f"{deadline.allowed_ms:g} ms") from None
        except asyncio.CancelledError:
            self._give_up(waited, self._silent("its time"))
            raise
        except Disconnected:
            raise self._gone() from None

    async def _soon(self, read: Pending, deadline: Deadline) -> bool:
        """Whether a read that was posted here is done within its time, in which the loop goes on."""
        while not read.future.done():
            if time.perf_counter() > read.until or deadline.passed:
                self._owner.wake()
                return False
            await asyncio.sleep(0)
            self._owner.look(SLICE_S)
        return True

    # --- reading, for a thread --------------------------------------------------------------------------------------

    def read(self, slots: Ints, rows: Ints | None, out: Bytes) -> int:
        """See `Peer.read`; not to be called on an event loop's thread."""
        return self._wait(self._copy(slots, rows, out))

    def generations(self, slots: Ints) -> Words:
        """See `Peer.generations`; not to be called on an event loop's thread."""
        found = np.zeros(len(slots), np.uint64)
        self._wait(self._look(slots, found))
        return found

    def _wait(self, steps: Steps) -> int:
        moved: Any = None
        with contextlib.closing(steps):
            while True:
                try:
                    waited = steps.send(moved)
                except StopIteration as ended:
                    return int(ended.value)
                self._owner.wake()
                future = waited.future if isinstance(waited, Pending) else waited
                try:
                    moved = self._reads.learned(future.result(SYNC_READ_S))
                except TimeoutError:
                    self._give_up(waited, self._silent(f"{SYNC_READ_S:g} s"))
                    raise self._silent(f"{SYNC_READ_S:g} s") from None
                except Disconnected:
                    raise self._gone() from None

    # --- life -------------------------------------------------------------------------------------------------------

    def alive(self) -> bool:
        return not self.dead

    def connected(self) -> bool:
        return self._reads.lost is None

    def lose(self, why: str) -> None:
        """The connection has ended: whoever waits for a read hears of it now. May be called twice."""
        if not self._reads.lose(ShardUnavailable(f"{self._who}: {why}")):
            return
        self._owner.forget(self._pool.agent, *self._pool.take_prepared())

    def close(self) -> None:
        fine = self._reads.lost is None
        self.lose("the connection was closed")
        self._ended(goodbye=fine)

    def _gone(self) -> StoreError:
        self.lose("the connection to its memory has ended")
        assert self._reads.lost is not None
        return self._reads.lost

    def _silent(self, allowed: str) -> ShardUnavailable:
        return ShardUnavailable(f"{self._who}: its memory has not answered within {allowed}")

    # --- steps ------------------------------------------------------------------------------------------------------

    def _straight(self, slots: Ints, rows: Ints | None, out: Bytes) -> Moved | Pending | None:
        """Read into memory that is registered; None where `out` is not."""
        found = self._regions.find(out)
        if found is None:
            return None
        region, first = found
        if region.given_up:
            raise DeadlineExceeded(
                "a read into this buffer was given up and may still land there: use another (Client.buffer)"
            )
        return self._read(self._pool.read(slots, rows, region, first), region, _nothing, len(slots) * region.slot_bytes)

    def _copy(self, slots: Ints, rows: Ints | None, out: Bytes) -> Steps:
        if not len(slots):
            return 0
        begun = self._straight(slots, rows, out)
        if begun is not None:
            return (begun if isinstance(begun, Moved) else (yield begun)).descriptors
        return (yield from self._by_landing(slots, rows, out))

    def _by_landing(self, slots: Ints, rows: Ints | None, out: Bytes) -> Steps:
        landing, region = self._landing, self._landing.region
        self._pool.require(slots)
        done = 0
        for at in range(0, len(slots), landing.most):
            part = slots[at : at + landing.most]
            run = yield from self._room(len(part))
            try:
                first = int(run.slots[0])
                make = self._pool.read(part, None, region, first)
                moved = self._read(make, region, run.let_go, len(part) * region.slot_bytes)
                done += (moved if isinstance(moved, Moved) else (yield moved)).descriptors
                into = slice(at, at + len(part)) if rows is None else rows[at : at + len(part)]
                out[into] = landing.slots[first : first + len(part)]
            finally:
                run.let_go()
        return done

    def _room(self, n: int) -> Generator[Future[Moved], Moved, Run]:
        while True:
            run = self._landing.take(n)
            if isinstance(run, Run):
                return run
            yield run

    def _look(self, slots: Ints, found: Words) -> Steps:
        """Generations are single words: they land packed, at the start of a landing run."""
        slot_bytes, region = self._landing.slot_bytes, self._landing.region
        most = self._landing.most * (slot_bytes // 8)
        self._pool.require(slots)
        done = 0
        for at in range(0, len(slots), most):
            part = slots[at : at + most]
            run = yield from self._room(-(-len(part) * 8 // slot_bytes))
            try:
                first = int(run.slots[0])
                size = 0 if len(part) <= HERE_WORDS else 1 << 62
                moved = self._read(self._pool.generations(part, region, first), region, run.let_go, size)
                done += (moved if isinstance(moved, Moved) else (yield moved)).descriptors
                words = self._landing.slots[first : first + len(run.slots)].reshape(-1).view(np.uint64)
                found[at : at + len(part)] = words[: len(part)]
            finally:
                run.let_go()
        return done

    def _read(self, make: Make, region: Region, release: Callable[[], None], size: int) -> Moved | Pending:
        try:
            return self._reads.post(make, region, release, size)
        except Disconnected:
            raise self._gone() from None

    def _give_up(self, waited: Pending | Future[Moved], why: StoreError) -> None:
        if isinstance(waited, Pending):
            self._reads.give_up(waited, why)


def _pool_of(facts: dict[str, Any], agent: str, slot_bytes: int) -> RemotePool:
    told, blocks = facts["nixl"], int(facts["blocks"])
    base, data = int(told["base"]), told.get("data")
    if data is None:
        return RemotePool(agent, base, blocks, slot_bytes)
    at = Data(int(data["base"]), None if data["gpu"] is None else int(data["gpu"]))
    return SplitPool(agent, base, blocks, Layout(**facts["layout"]), at)


def _nothing() -> None:
    """Of a read that holds nothing but its region."""
