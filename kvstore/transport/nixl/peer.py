"""A shard's pool, as its client reads it by NIXL."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np

from kvstore.deadline import Deadline
from kvstore.errors import DeadlineExceeded, ShardUnavailable, StoreError
from kvstore.header import HEADER, Bytes
from kvstore.index import Index
from kvstore.transport import Ints, Words
from kvstore.transport.nixl.agent import Agent, Disconnected, Transfer, spans
from kvstore.transport.nixl.landing import Landing, Run
from kvstore.transport.nixl.owner import SPIN_S, Moved, Owner
from kvstore.transport.nixl.regions import Region, Regions, require_slots

Steps = Generator[Future[Moved], Moved, int]
"""Waits for reads one after the other; its value is how many descriptors they took."""


class Ended(Protocol):
    """Told once when a peer is closed; `goodbye`: nothing was wrong."""

    def __call__(self, *, goodbye: bool) -> None: ...


SYNC_READ_S = 30.0
"""How long the plain calls wait, whose callers have told no deadline."""
HERE_BYTES, HERE_WORDS = (1 << 20) + (1 << 16), 64
"""Reads up to this large (a mebibyte of blocks and their headers) are posted where they are asked for: over shared
memory the post is the copy, a quarter of a millisecond."""
_SINGLES_BELOW = 2.0
"""Mean slots a run below which prepared descriptors of single slots beat descriptors made of runs (measured)."""
_GENERATION_AT = HEADER.fields["generation"][1] if HEADER.fields else 32


class _Read:
    """One read and who waits for it; it may outlive him."""

    def __init__(self, region: Region, release: Callable[[], None]) -> None:
        self.future: Future[Moved] = Future()
        self._region = region
        self._release = release
        self._lock = threading.Lock()
        self._given_up = False
        region.begin()

    def over(self, said: Moved | Disconnected) -> None:
        """NIXL has said so: nothing of it lands any more."""
        with self._lock:
            waited_for = not self._given_up
            if waited_for and not self.future.done():
                if isinstance(said, Moved):
                    self.future.set_result(said)
                else:
                    self.future.set_exception(said)
        self._region.end(given_up=not waited_for)
        self._release()

    def give_up(self, why: StoreError) -> None:
        """Nobody waits for it any more; the memory stays its own until it is over."""
        with self._lock:
            if self.future.done():
                return
            self._given_up = True
            self._region.give_up()
            self.future.set_exception(why)


class NixlPeer:
    """See `Peer`; `index` is always None. States: connected, then `lost` for good: the link makes a new one."""

    def __init__(self, facts: dict[str, Any], owner: Owner, regions: Regions, landing: Landing, ended: Ended) -> None:
        self.facts = facts
        self.index: Index | None = None
        pool = facts["nixl"]
        self._agent, self._base, self._blocks = str(pool["agent"]), int(pool["base"]), int(facts["blocks"])
        self._who = f"shard {facts['shard']} ({facts['address']})"
        self._owner = owner
        self._regions = regions
        self._landing = landing
        self._slot_bytes = landing.slot_bytes
        self._ended = ended
        self.when_dead: Callable[[], None] | None = None
        self._prepared = 0
        self._reads: set[_Read] = set()
        self._here: set[Future[Moved]] = set()
        self._lock = threading.Lock()
        self._lost: StoreError | None = None
        self.dead = False
        """True once its process is known to have ended."""

    async def meet(self, metadata: bytes, deadline: Deadline) -> None:
        """Load the shard's metadata, and read a word of its pool: the way there is one that works."""
        whole = spans(self._base, np.arange(self._blocks), 1, self._slot_bytes)

        def prepare(agent: Agent) -> int:
            return agent.prepare(self._agent, whole)

        await asyncio.wrap_future(self._owner.meet(self._agent, metadata))
        try:
            self._prepared = await asyncio.wrap_future(self._owner.submit(prepare))
            await self.fetch_generations(np.zeros(1, np.int64), deadline)
        except BaseException:
            self.close()
            raise

    # --- reading, for a loop ----------------------------------------------------------------------------------------

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
                    future = steps.send(moved)
                except StopIteration as ended:
                    return int(ended.value)
                try:
                    if not await self._soon(future):
                        async with asyncio.timeout(deadline.left_s):
                            await asyncio.shield(asyncio.wrap_future(future))
                    moved = future.result()
                except TimeoutError:
                    self._give_up(future, self._silent(f"{deadline.allowed_ms:g} ms"))
                    raise self._silent(f"{deadline.allowed_ms:g} ms") from None
                except asyncio.CancelledError:
                    self._give_up(future, self._silent("its time"))
                    raise
                except Disconnected:
                    raise self._gone() from None

    async def _soon(self, future: Future[Moved]) -> bool:
        """Whether a read that was posted here is done within a moment in which the loop goes on."""
        end = time.perf_counter() + SPIN_S
        while not future.done():
            if future not in self._here or time.perf_counter() > end:
                self._owner.wake()
                return False
            await asyncio.sleep(0)
            self._owner.look()
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
                    future = steps.send(moved)
                except StopIteration as ended:
                    return int(ended.value)
                try:
                    end = time.perf_counter() + SPIN_S
                    while not future.done() and future in self._here and time.perf_counter() < end:
                        self._owner.look()
                    if not future.done():
                        self._owner.wake()
                    moved = future.result(SYNC_READ_S)
                except TimeoutError:
                    self._give_up(future, self._silent(f"{SYNC_READ_S:g} s"))
                    raise self._silent(f"{SYNC_READ_S:g} s") from None
                except Disconnected:
                    raise self._gone() from None

    # --- life -------------------------------------------------------------------------------------------------------

    def alive(self) -> bool:
        return not self.dead

    def connected(self) -> bool:
        return self._lost is None

    def lose(self, why: str) -> None:
        """The connection has ended: whoever waits for a read hears of it now. May be called twice."""
        with self._lock:
            if self._lost is not None:
                return
            self._lost = ShardUnavailable(f"{self._who}: {why}")
            waiting, self._reads = self._reads, set()
        for read in waiting:
            read.give_up(self._lost)
        prepared, self._prepared = self._prepared, 0
        self._owner.forget(self._agent, *([prepared] if prepared else []))

    def close(self) -> None:
        fine = self._lost is None
        self.lose("the connection was closed")
        self._ended(goodbye=fine)

    def _gone(self) -> StoreError:
        self.lose("the connection to its memory has ended")
        assert self._lost is not None
        return self._lost

    def _silent(self, allowed: str) -> ShardUnavailable:
        return ShardUnavailable(f"{self._who}: its memory has not answered within {allowed}")

    # --- steps ------------------------------------------------------------------------------------------------------

    def _copy(self, slots: Ints, rows: Ints | None, out: Bytes) -> Steps:
        require_slots(slots, self._blocks)
        if not len(slots):
            return 0
        to = np.arange(len(slots), dtype=np.int64) if rows is None else rows
        region = self._regions.find(out)
        if region is not None:
            return (yield from self._straight(slots, to, out, region))
        done = 0
        for at in range(0, len(slots), self._landing.most):
            part, into = slots[at : at + self._landing.most], to[at : at + self._landing.most]
            run = yield from self._room(len(part))
            try:
                moved = yield self._post(part, run.slots, self._landing.region, run.let_go)
                out[into] = self._landing.slots[run.slots]
            finally:
                run.let_go()
            done += moved.descriptors
        return done

    def _room(self, n: int) -> Generator[Future[Moved], Moved, Run]:
        while True:
            run = self._landing.take(n)
            if isinstance(run, Run):
                return run
            yield run

    def _straight(self, slots: Ints, to: Ints, out: Bytes, region: Region) -> Steps:
        if region.given_up:
            raise DeadlineExceeded(
                "a read into this buffer was given up and may still land there: use another (Client.buffer)"
            )
        offset, odd = divmod(int(out.ctypes.data) - region.base, self._slot_bytes)
        if odd:
            raise StoreError("a buffer does not begin at a slot of its memory")
        moved = yield self._post(slots, to + offset, region, lambda: None)
        return moved.descriptors

    def _post(self, slots: Ints, to: Ints, region: Region, release: Callable[[], None]) -> Future[Moved]:
        joined = (slots[1:] - slots[:-1] == 1) & (to[1:] - to[:-1] == 1)
        starts = np.concatenate(([0], np.flatnonzero(~joined) + 1))
        slot_bytes, name = self._slot_bytes, self._agent

        def singles(agent: Agent) -> Transfer:
            into, source = to.astype(np.int32), slots.astype(np.int32)
            return agent.read_prepared(name, region.prepared, into, self._prepared, source, slot_bytes)

        def runs(agent: Agent) -> Transfer:
            lengths = np.diff(np.append(starts, len(slots)))
            local = spans(region.base, to[starts], lengths, slot_bytes)
            return agent.read(name, local, spans(self._base, slots[starts], lengths, slot_bytes))

        here = len(slots) * slot_bytes <= HERE_BYTES
        return self._read(singles if len(slots) < _SINGLES_BELOW * len(starts) else runs, region, release, here=here)

    def _look(self, slots: Ints, found: Words) -> Steps:
        """Generations are single words: they land packed, at the start of a landing run."""
        require_slots(slots, self._blocks)
        words_a_run = self._slot_bytes // 8
        done = 0
        for at in range(0, len(slots), self._landing.most * words_a_run):
            part = slots[at : at + self._landing.most * words_a_run]
            run = yield from self._room(-(-len(part) // words_a_run))
            first = self._landing.region.base + int(run.slots[0]) * self._slot_bytes
            local = np.zeros((len(part), 3), np.uint64)
            local[:, 0] = np.uint64(first) + np.arange(len(part), dtype=np.uint64) * np.uint64(8)
            local[:, 1] = 8
            remote = spans(self._base + _GENERATION_AT, part, 1, self._slot_bytes)
            remote[:, 1] = 8

            def post(agent: Agent, local: Any = local, remote: Any = remote) -> Transfer:
                return agent.read(self._agent, local, remote)

            try:
                moved = yield self._read(post, self._landing.region, run.let_go, here=len(part) <= HERE_WORDS)
                words = self._landing.slots[run.slots].reshape(-1).view(np.uint64)
                found[at : at + len(part)] = words[: len(part)]
            finally:
                run.let_go()
            done += moved.descriptors
        return done

    def _read(
        self, post: Callable[[Agent], Transfer], region: Region, release: Callable[[], None], *, here: bool
    ) -> Future[Moved]:
        read = _Read(region, release)
        with self._lock:
            if self._lost is not None:
                read.over(Disconnected(str(self._lost)))
                raise self._lost
            self._reads.add(read)

        def over(said: Moved | Disconnected) -> None:
            with self._lock:
                self._reads.discard(read)
            self._here.discard(read.future)
            read.over(said)

        if here:
            self._here.add(read.future)
        if not self._owner.read(post, over, here=here):
            self._here.discard(read.future)
        return read.future

    def _give_up(self, future: Future[Moved], why: StoreError) -> None:
        with self._lock:
            mine = [read for read in self._reads if read.future is future]
        for read in mine:
            read.give_up(why)
