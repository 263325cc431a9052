"""Puts: reserve, pull, verify, log, publish, answer. Until the last step but one nothing can be found."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

import numpy as np
import numpy.typing as npt

from kvstore.arena import Arena
from kvstore.errors import BadRequest
from kvstore.log import Batch
from kvstore.messages import Published, Put
from kvstore.shard.claims import Claim
from kvstore.shard.core import Call, Core
from kvstore.shard.leases import Slots, Words
from kvstore.shard.pull import (
    first_of_each,
    require_one_block_a_key,
    require_rows,
    require_staging,
    require_sums,
)
from kvstore.shard.relog import existing_batch, give_way, take_back, until_logged


@dataclass(slots=True)
class _Flight:
    """A put between its pull and its publication. `rows` are those of the request that have slots of their own."""

    call: Call
    request: Put
    rows: Slots
    slots: Slots
    sums: Words
    clock: int
    pins: list[Slots]
    existed: npt.NDArray[np.bool_]
    logged: Claim | None = None
    """Once something of it was handed to the log."""
    begun: float = field(default_factory=perf_counter)


class Puts:
    """The put side of a shard."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def begin(self, call: Call, request: Put, staging: Arena | None) -> _Flight:
        """Everything before the log has answered; raises whatever refuses the put, and then keeps nothing."""
        core, now_ms = self._core, self._core.now_ms()
        call.require_time(now_ms)
        self._require_columns(request)
        core.journal.require(request.durability)
        arena = require_staging(staging, request.staging, core.layout.block_bytes)
        if request.session:
            core.sessions.require(request.session, now_ms)
        found = core.pool.find(request.keys)
        existed = found >= 0
        rows = np.flatnonzero(~existed)
        rows = rows[first_of_each(request.keys[rows])]
        # Pinned until published: room must not be made by evicting what this very put found to be there.
        pinned = np.unique(found[existed])
        flight = _Flight(call, request, rows, _NO_SLOTS, _NO_WORDS, core.clock.tick(), [pinned], existed)
        core.pool.pin(pinned)
        try:
            if len(rows):
                flight.slots = core.reserve(len(rows), one_run=request.one_run, now_ms=now_ms)
            self._pull(flight, arena)
            if request.durability:
                self._log(flight)
        except BaseException:
            core.pool.unpin(pinned)
            core.pool.abandon(flight.slots)
            raise
        return flight

    def _require_columns(self, request: Put) -> None:
        if request.keys.ndim != 2 or request.keys.shape[1] != 4:
            raise BadRequest(f"keys have shape {request.keys.shape}, not [n, 4]")
        require_rows(
            len(request.keys),
            staging=request.staging,
            data_sums=request.data_sums,
            valid=request.valid,
            chains=request.chains,
        )
        valid, tokens = request.valid, self._core.layout.block_tokens
        if len(valid) and not (int(valid.min()) >= 1 and int(valid.max()) <= tokens):
            raise BadRequest(f"a block has 1 … {tokens} valid tokens")
        require_one_block_a_key(request.keys, request.data_sums)

    def _pull(self, flight: _Flight, staging: Arena) -> None:
        began = perf_counter()
        flight.sums = self._core.pool.arena.pull(staging, flight.request.staging[flight.rows], flight.slots)
        require_sums(flight.sums, flight.request.data_sums[flight.rows])
        self._stage("pull", began, flight.call)

    def _log(self, flight: _Flight) -> None:
        """Into the log with what is new, and with what was there but never logged: its put is durable from now on."""
        core, request, rows = self._core, flight.request, flight.rows
        batches = []
        if len(rows):
            clock = np.full(len(rows), flight.clock, np.uint64)
            batches.append(
                core.journal.puts(
                    request.keys[rows],
                    flight.slots,
                    clock=clock,
                    valid=request.valid[rows],
                    chains=request.chains[rows],
                    sums=flight.sums,
                )
            )
        pinned = flight.pins[0]
        unlogged = pinned[~core.journal.logged[pinned]]
        if len(unlogged):
            batches.append(existing_batch(core, unlogged))
        if batches:
            flight.logged = core.journal.write(Batch.joined(*batches), flight.call.traceparent, unlogged)

    async def finish(self, flight: _Flight) -> Published:
        """After the log has answered: publish, or abandon what may not be."""
        core, request, began = self._core, flight.request, perf_counter()
        try:
            if flight.logged is not None:
                check = partial(self._require_may_publish, flight)
                await until_logged(core, flight, request.keys, request.valid, request.chains, check)
                self._stage("log", began, flight.call)
            self._require_may_publish(flight)
        except BaseException as error:
            core.pool.abandon(flight.slots)
            take_back(core, flight, request.keys, error)
            raise
        finally:
            core.journal.done(flight.logged)
            for slots in flight.pins:
                core.pool.unpin(slots)
        return self.publish(flight)

    def _require_may_publish(self, flight: _Flight) -> None:
        core = self._core
        flight.call.require_time(core.now_ms())
        core.ownership.require(core.now_ms())
        core.ownership.require_home(flight.request.keys)

    def publish(self, flight: _Flight) -> Published:
        """Headers, then index. A key that somebody else published meanwhile stays as it is."""
        core, request, began = self._core, flight.request, perf_counter()
        give_way(core, flight, request.keys, request.valid)
        rows, count, now_ms = flight.rows, len(flight.rows), core.now_ms()
        if count:
            core.pool.publish(
                flight.slots,
                request.keys[rows],
                np.full(count, flight.clock, np.uint64),
                request.valid[rows],
                request.chains[rows],
                flight.sums,
                now_ms=now_ms,
            )
            if request.durability:
                core.journal.noted(flight.slots, request.keys[rows])
        slots = core.pool.find(request.keys)
        there = slots >= 0
        session = core.sessions.find(request.session, now_ms) if request.session else None
        if session is not None:
            core.sessions.hold(session, slots[there])
        core.pool.touch(slots[flight.existed & there], now_ms)
        core.meters.put_blocks += count
        core.meters.put_bytes += count * core.layout.block_bytes
        self._stage("publish", began, flight.call)
        return published(core, slots, fresh=rows)

    def _stage(self, stage: str, began: float, call: Call) -> None:
        self._core.meters.put_stage_seconds[stage].observe(perf_counter() - began, call.trace_id)


_NO_SLOTS: Slots = np.zeros(0, np.int64)
_NO_WORDS: Words = np.zeros(0, np.uint64)


def published(core: Core, slots: Slots, *, fresh: Slots) -> Published:
    """The answer: where each row is now (−1: removed in the meantime); rows not in `fresh` existed before."""
    there = slots >= 0
    at = np.where(there, slots, 0)
    existed = np.ones(len(slots), np.bool_)
    existed[fresh] = False
    return Published(
        slots,
        np.where(there, core.pool.generations(at), np.uint64(0)),
        np.where(there, core.pool.clocks(at), np.uint64(0)),
        existed,
    )
