"""The shard: every message in, its answer out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from kvstore.arena import Arena, PoolArena
from kvstore.bitmap import SlotBitmap
from kvstore.clock import MAX_CLOCK, LamportClock
from kvstore.errors import BadRequest, DeadlineExceeded, LogCorrupt, StoreError
from kvstore.ghosts import Ghosts
from kvstore.hotness import Hotness
from kvstore.index import Index
from kvstore.layout import Layout
from kvstore.log import Log
from kvstore.membership.homes import Homes
from kvstore.membership.ownership import Ownership
from kvstore.messages import (
    Append,
    CloseSession,
    Durability,
    Envelope,
    Lease,
    Leased,
    Lookup,
    OpenSession,
    Ping,
    Pong,
    Published,
    Put,
    Remove,
    Removed,
    TailMatch,
    Touch,
)
from kvstore.meters import Meters
from kvstore.page.figures import PoolFigures, SessionFigures
from kvstore.pool import Pool
from kvstore.session import Sessions
from kvstore.shard.core import Call, Core
from kvstore.shard.credits import Credits
from kvstore.shard.journal import Journal
from kvstore.shard.leases import Leases
from kvstore.shard.lookups import lookup, touch
from kvstore.shard.moved import drop_moved, drop_tails
from kvstore.shard.pull import Afar
from kvstore.shard.puts import Puts
from kvstore.shard.recovery import recover, require_room
from kvstore.shard.removal import remove
from kvstore.shard.sessions import close_session, end_expired, open_session
from kvstore.shard.tails import Tails
from probes.instrument import Instrument, Span

Answer = Any
_OPERATIONS: dict[type[Any], tuple[str, str]] = {
    Lookup: ("kv.lookup", "lookup"),
    TailMatch: ("kv.tail_match", "lookup"),
    Put: ("kv.put", "put"),
    Append: ("kv.append", "append"),
    Lease: ("kv.lease", "lease"),
    Touch: ("kv.touch", "touch"),
    OpenSession: ("kv.open_session", "session"),
    CloseSession: ("kv.close_session", "session"),
    Remove: ("kv.remove", ""),
    Ping: ("kv.ping", ""),
}


def monotonic_ms() -> int:
    """CLOCK_MONOTONIC in milliseconds."""
    return time.monotonic_ns() // 1_000_000


class Shard:
    """One shard's state. All methods are for the thread of one event loop.

    `log` with `durability` (the strongest promise it can keep) makes puts durable that ask for it; a log that holds
    blocks already must be recovered first, with `recover`.
    """

    def __init__(
        self,
        layout: Layout,
        pool: Pool,
        *,
        number: int = 0,
        log: Log | None = None,
        durability: Durability = Durability.NONE,
        meters: Meters | None = None,
        credits: Credits | None = None,
        now_ms: Callable[[], int] = monotonic_ms,
        ownership: Ownership | None = None,
    ) -> None:
        self.layout = layout
        self.pool = pool
        self.number = number
        self.log = log
        self.meters = meters if meters is not None else Meters()
        self.clock = LamportClock()
        pool_bytes = len(pool) * layout.block_bytes
        self.credits = credits if credits is not None else Credits.for_pool(pool_bytes)
        self._now_ms = now_ms
        ownership = ownership or Ownership(number)
        self._instrument = Instrument("kvstore.shard")
        self.core = Core(
            layout,
            pool,
            self.clock,
            self.meters,
            Sessions(pool),
            Ghosts.for_pool(len(pool)),
            Hotness(),
            Leases(pool, self.meters, ownership),
            Journal(log, durability, layout, pool.arena),
            now_ms,
            ownership,
        )
        self._puts = Puts(self.core)
        self._tails = Tails(self.core)
        self._background: set[asyncio.Task[Any]] = set()

    @classmethod
    def create(
        cls,
        layout: Layout,
        blocks: int,
        *,
        bitmap: SlotBitmap | None = None,
        sealed: bool = True,
        device: str = "",
        arena: PoolArena | None = None,
        **options: Any,
    ) -> Shard:
        """A shard with a new pool of `blocks` slots, kept in `bitmap` (all free); `options` as for `Shard`.

        `sealed` False: other processes of this user could map the pool writable, as an HCA's driver needs it. `device`:
        where the data lies, "" for host memory; raises `BadRequest` where there is none such, or not so much memory.
        `arena`: what the pool lies in, where somebody has made that already.
        """
        arena = arena or _new_arena(layout, blocks, device, sealed=sealed)
        pool = Pool(arena, Index.create(blocks), bitmap=bitmap, window_blocks=layout.window_blocks)
        return cls(layout, pool, **options)

    def recover(self, *, drop_surplus: bool = False) -> int:
        """Publish again what the log holds; how many blocks. Call it once, before the first message. Raises
        `LogCorrupt`, and `BadRequest` for more blocks than the pool has, unless the surplus may be dropped."""
        if self.log is None:
            return 0
        require_room(self.log, len(self.pool), drop_surplus=drop_surplus)
        if self.log.last_clock > MAX_CLOCK:
            raise LogCorrupt(f"the log holds a clock of {self.log.last_clock}: no store gets beyond 2**62")
        return recover(self.core, self.log.recovered(), self.log.last_clock, self._now_ms())

    # --- answering --------------------------------------------------------------------------------------------------

    async def answer(self, envelope: Envelope, message: Any, staging: Arena | Afar | None = None) -> Answer:
        """The answer to any request of `messages.py`; `staging` is the asker's arena, which a put is pulled from.

        Raises a `StoreError` that refuses it; `DeadlineExceeded` rather than answer late.
        """
        self.clock.merge_from_anybody(envelope.clock)
        name, operation = _OPERATIONS.get(type(message), ("", ""))
        if not name:
            raise BadRequest(f"a shard has no answer to {type(message).__name__}")
        failure = self.core.journal.failure
        if failure is not None:
            raise failure
        call = Call(envelope.client, envelope.deadline_ms, self._now_ms() + envelope.deadline_ms)
        meter = self.meters.operations[operation] if operation else None
        blocks = _blocks(message)
        begin = self._instrument.span
        if isinstance(message, Put | Append | Remove):
            async with begin(name, kind="server", parent=envelope.traceparent, blocks=blocks, meter=meter) as span:
                call.trace_id, call.traceparent = span.trace_id, span.traceparent
                return await self._write(call, message, staging, span)
        with begin(name, kind="server", parent=envelope.traceparent, blocks=blocks, meter=meter):
            return self._read(call, message)

    def _read(self, call: Call, message: Any) -> Answer:
        """What needs neither the log nor a wait."""
        began, now_ms, core = perf_counter(), self._now_ms(), self.core
        call.require_time(now_ms)
        try:
            match message:
                case Lookup():
                    return lookup(core, call, message, now_ms)
                case TailMatch():
                    return self._tails.match(call, message, now_ms)
                case Lease():
                    return self._lease(call.client, message, now_ms)
                case Touch():
                    touch(core, message, now_ms)
                    return Pong(self.number, now_ms)
                case OpenSession():
                    return open_session(core, message, now_ms)
                case CloseSession():
                    return close_session(core, message, now_ms)
                case _:
                    return Pong(self.number, now_ms)
        finally:
            self.meters.busy_seconds += perf_counter() - began

    def _lease(self, client: int, message: Lease, now_ms: int) -> Leased:
        leases = self.core.leases
        if message.pin > 0:
            return Leased(leases.pin(message.leases, client, now_ms))
        if message.pin < 0:
            return Leased(leases.unpin(message.leases, message.lease_ms, client, now_ms))
        return Leased(leases.renew(message.leases, message.lease_ms, client, now_ms))

    # --- writing ----------------------------------------------------------------------------------------------------

    async def _write(
        self, call: Call, message: Put | Append | Remove, staging: Arena | Afar | None, span: Span
    ) -> Answer:
        ownership = self.core.ownership
        try:
            ownership.require(self._now_ms())
            ownership.require_home(message.keys)
            if isinstance(message, Remove):
                answer: Answer = await self._remove(call, message)
            else:
                answer = await self._stored(call, message, staging)
            ownership.require_still(self._now_ms())  # a shard that was stopped meanwhile must not say that it is done
            return answer
        except StoreError as error:
            if not isinstance(message, Remove):
                self.meters.refused_put(error)
            raise

    async def _stored(self, call: Call, message: Put | Append, staging: Arena | Afar | None) -> Published:
        if staging is None or isinstance(staging, Arena):
            return await self._pulled(call, message, staging)
        answer: Published = await self._in_time(call, self._brought(call, message, staging))
        return answer

    async def _brought(self, call: Call, message: Put | Append, afar: Afar) -> Published:
        """What comes over the network: neither slots nor credits wait for it, and what comes too late is let go."""
        began = perf_counter()
        left_s = max(0, call.until_ms - self._now_ms()) / 1000
        async with afar.bring(message.staging, left_s) as (arena, slots):
            self.meters.put_stage_seconds["transfer"].observe(perf_counter() - began, call.trace_id)
            return await self._pulled(call, replace(message, staging=slots), arena)

    async def _pulled(self, call: Call, message: Put | Append, staging: Arena | None) -> Published:
        """With credits for its bytes from before the pull until the log has answered, even if the asker left."""
        size = len(message.keys) * self.layout.block_bytes
        try:
            async with asyncio.timeout(max(0, call.until_ms - self._now_ms()) / 1000):
                await self.credits.take(call.client, size)
        except TimeoutError:
            raise DeadlineExceeded(
                f"no credits within the deadline of {call.deadline_ms} ms: {self.credits.in_flight} bytes are under way"
            ) from None
        try:
            rest, waits = self._begin(call, message, staging)
        except BaseException:
            self.credits.give(call.client, size)
            raise
        finished = self._and_give(rest, call.client, size)
        return await (self._in_time(call, finished) if waits else finished)

    def _begin(
        self, call: Call, message: Put | Append, staging: Arena | None
    ) -> tuple[Coroutine[Any, Any, Published], bool]:
        """All up to the log; what is left to do, and whether that waits."""
        began = perf_counter()
        try:
            if isinstance(message, Put):
                put = self._puts.begin(call, message, staging)
                return self._puts.finish(put), put.logged is not None
            append = self._tails.begin(call, message, staging)
            if isinstance(append, Published):
                return _ready(append), False
            return self._tails.finish(append), append.logged is not None
        finally:
            self.meters.busy_seconds += perf_counter() - began

    async def _and_give(self, rest: Coroutine[Any, Any, Published], client: int, size: int) -> Published:
        try:
            return await rest
        finally:
            self.credits.give(client, size)

    async def _remove(self, call: Call, message: Remove) -> Removed:
        began = perf_counter()
        call.require_time(self._now_ms())
        removed, logged = remove(self.core, message)
        self.meters.busy_seconds += perf_counter() - began
        if logged is not None:
            await self._in_time(call, _awaited(logged))
        return removed

    async def _in_time(self, call: Call, work: Coroutine[Any, Any, Any]) -> Any:
        """The outcome of `work` if it comes within the deadline; `work` itself goes on to its end."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._ended)
        done, _ = await asyncio.wait({task}, timeout=max(0, call.until_ms - self._now_ms()) / 1000)
        if not done:
            raise DeadlineExceeded(f"log or transfer: not done within the deadline of {call.deadline_ms} ms")
        return task.result()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()

    # --- in between -------------------------------------------------------------------------------------------------

    def sweep(self, now_ms: int) -> None:
        """To be called some times a second: what has ended goes. Raises `LogFailed` once the log has stopped."""
        core = self.core
        core.leases.sweep(now_ms)
        end_expired(core, now_ms)
        self.pool.sweep(now_ms)
        core.journal.settle(self.clock.now)
        self._tails.settle()
        self.meters.block_reuse_gap_seconds.observe_many(self.pool.drain_reuse_gaps_ms() / 1000)
        failure = core.journal.failure
        if failure is not None:
            raise failure

    def drop_moved(self, homes: Homes | None) -> int:
        """Blocks whose home is another shard now leave the index (all of them, without `homes`); how many."""
        return drop_moved(self.core, homes)

    def drop_tails(self) -> int:
        """What a recovery brought back of tails, on becoming a member: others may have had newer ones; how many."""
        return drop_tails(self.core)

    def forget_client(self, client: int) -> None:
        """Its process has ended: so have its leases and pins."""
        self.core.leases.client_gone(client)

    async def close(self) -> None:
        """Answer what is under way, then close the log."""
        if self._background:
            await asyncio.wait(self._background, timeout=5)
        if self.log is not None:
            await asyncio.to_thread(self.log.close)

    # --- figures ----------------------------------------------------------------------------------------------------

    def pool_figures(self) -> PoolFigures:
        return PoolFigures.of(self.pool, self._now_ms())

    def session_figures(self) -> list[SessionFigures]:
        return [
            SessionFigures(
                name,
                figures.active,
                figures.idle,
                figures.blocks,
                figures.ttl_ms / 1000,
                np.array(figures.idle_ms, np.float64) / 1000,
            )
            for name, figures in self.core.sessions.figures(self._now_ms()).items()
        ]

    def hot_key_share(self) -> float | None:
        """Share of the last interval's lookups that asked for the commonest chain; None without lookups."""
        return self.core.hotness.share(self._now_ms())

    def lease_left_s(self) -> float:
        """Of the shard's own lease (of membership); below 0 when it is over."""
        return (self.core.ownership.until_ms - self._now_ms()) / 1000

    @property
    def leases(self) -> int:
        """Running leases, pins not among them."""
        return len(self.core.leases) - self.core.leases.pins

    @property
    def pins(self) -> int:
        return self.core.leases.pins


def _new_arena(layout: Layout, blocks: int, device: str, *, sealed: bool) -> PoolArena:
    if not device:
        return Arena.create("kv-pool", blocks, layout.slot_bytes, layout.block_bytes, pool=sealed)
    from kvstore.transport.device.arena import DeviceArena
    from kvstore.transport.device.memory import device_named

    return DeviceArena.create(device_named(device), blocks, layout.slot_bytes, layout.block_bytes)


def _blocks(message: Any) -> int:
    """How many blocks a message is about."""
    match message:
        case Lookup() | Put() | Append() | TailMatch() | Remove():
            return len(message.keys)
        case Touch():
            return len(message.slots)
        case _:
            return 0


async def _ready(answer: Published) -> Published:
    return answer


async def _awaited(future: Awaitable[None]) -> None:
    await future
