"""Durable puts, removals and others that meet on one key while the log is flushing: the log ends where the shard is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from random import Random
from typing import Any

import numpy as np
import pytest

from kvstore.errors import DeadlineExceeded, LogFailed, LogFull, StoreError
from kvstore.header import FLAG_TAIL
from kvstore.log import Batch, Kind, Ticket
from kvstore.log.table import LiveTable
from kvstore.messages import Durability, Lookup, OpenSession, Published, Remove
from kvstore.pool import Pool
from tests.kvstore.shard_rig import TOKENS, Rig, keys_of, tail_keys

A = list(range(4))
HISTORY = [1, 2, 3, 4, 5, 6]
KEEP = Durability.LOG
SEEDS = int(os.environ.get("KVSCOPE_LOG_RACES", "3"))
PUT, APPEND, REMOVE = int(Kind.PUT), int(Kind.APPEND), int(Kind.REMOVE)


class SlowLog:
    """A log that answers when it is told to, one batch after the other, and may have no room; what it would recover."""

    def __init__(self) -> None:
        self.kinds: list[int] = []
        self.failure: LogFailed | None = None
        self.table = LiveTable()
        self.waiting: list[tuple[Batch, Ticket]] = []
        self._written = 0

    def append(self, batch: Batch, loop: asyncio.AbstractEventLoop | None = None, traceparent: str = "") -> Ticket:
        ticket = Ticket(batch, loop)
        self.kinds += batch.headers["kind"].tolist()
        self.waiting.append((batch, ticket))
        return ticket

    def answer(self, count: int = 1_000_000, *, full: bool = False) -> None:
        """The next batches are durable, or refused for want of room."""
        for batch, ticket in self.waiting[:count]:
            if not full:
                self._written += 1
                rows = len(batch)
                self.table.apply(batch.headers, np.full(rows, self._written, np.uint64), np.arange(rows))
            future = ticket.future
            assert future is not None
            if not future.done():
                future.set_exception(LogFull("no room")) if full else future.set_result(None)
        del self.waiting[:count]

    def holds(self) -> dict[bytes, tuple[int, int]]:
        """key → (clock, valid tokens) of what a recovery would find."""
        rows = self.table.rows[self.table.heads()]
        return {row["key"].tobytes(): (int(row["clock"]), int(row["valid"])) for row in rows}

    def close(self) -> None:
        pass


def slow(**options: Any) -> tuple[Rig, SlowLog]:
    log = SlowLog()
    return Rig(log=log, durability=Durability.LOG_SYNC, **options), log  # type: ignore[arg-type]


async def settled(rig: Rig, log: SlowLog, tasks: Collection[asyncio.Task[None]] = ()) -> None:
    """Until nothing is under way."""
    async with asyncio.timeout(20):
        while log.waiting or rig.shard._background or not all(task.done() for task in tasks):
            log.answer()
            rig.shard.sweep(rig.now_ms)
            await asyncio.sleep(0)


async def handed(log: SlowLog, count: int) -> None:
    async with asyncio.timeout(20):
        while len(log.kinds) < count:
            await asyncio.sleep(0)


def key(tokens: list[int] = A) -> bytes:
    return keys_of(tokens)[0].tobytes()


async def test_a_removal_while_an_unlogged_block_is_being_logged_is_the_last_word() -> None:
    rig, log = slow()
    await rig.put(A)
    put = asyncio.create_task(rig.put(A, durability=KEEP))
    await handed(log, 1)
    removal = asyncio.create_task(rig.ask(Remove(keys_of(A), KEEP)))
    await handed(log, 2)
    assert not removal.done(), "not before the log says so"
    await settled(rig, log)
    assert (await removal).found.all()
    assert (await put).slot.tolist() == [-1]
    assert log.kinds == [PUT, REMOVE]
    assert log.holds() == {}


async def test_a_put_whose_key_another_took_back_meanwhile_is_logged_again_before_it_is_acknowledged() -> None:
    rig, log = slow()
    late = asyncio.create_task(rig.ask(rig.put_message(A, durability=KEEP), deadline_ms=30))
    await handed(log, 1)
    with pytest.raises(DeadlineExceeded):
        await late
    put = asyncio.create_task(rig.put(A, durability=KEEP))
    await handed(log, 2)
    rig.now_ms += 30
    log.answer(1)  # the first put comes too late, and takes back what it wrote
    await handed(log, 3)
    log.answer(2)
    await handed(log, 4)
    assert log.kinds == [PUT, PUT, REMOVE, PUT]
    assert not put.done()
    await settled(rig, log)
    answer = await put
    assert log.holds() == {key(): (int(answer.clock[0]), TOKENS)}


async def test_a_put_whose_key_was_published_and_removed_meanwhile_is_logged_again() -> None:
    rig, log = slow()
    put = asyncio.create_task(rig.put(A, durability=KEEP))
    await handed(log, 1)
    await rig.put(A)
    removal = asyncio.create_task(rig.ask(Remove(keys_of(A), KEEP)))
    await handed(log, 2)
    await settled(rig, log)
    await removal
    answer = await put
    assert log.kinds == [PUT, REMOVE, PUT]
    assert log.holds() == {key(): (int(answer.clock[0]), TOKENS)}


async def test_a_put_that_finds_its_key_published_by_another_logs_what_is_there() -> None:
    rig, log = slow()
    put = asyncio.create_task(rig.put(A, durability=KEEP))
    await handed(log, 1)
    other = await rig.put(A)
    await settled(rig, log)
    answer = await put
    assert answer.clock.tolist() == other.clock.tolist()
    assert log.holds() == {key(): (int(other.clock[0]), TOKENS)}
    await rig.ask(Remove(keys_of(A)))
    await settled(rig, log)
    assert log.holds() == {}


async def test_a_block_that_a_late_put_logged_does_not_outlive_its_removal() -> None:
    rig, log = slow()
    await rig.put(A)
    late = asyncio.create_task(rig.ask(rig.put_message(A, durability=KEEP), deadline_ms=30))
    await handed(log, 1)
    with pytest.raises(DeadlineExceeded):
        await late
    rig.now_ms += 30
    await settled(rig, log)
    assert (await rig.lookup(A)).slot[0] >= 0
    await rig.ask(Remove(keys_of(A)))
    await settled(rig, log)
    assert log.holds() == {}


async def test_removing_a_tail_takes_the_older_version_that_was_logged() -> None:
    rig, log = slow()
    session = await rig.open()
    one = asyncio.create_task(rig.append(session, HISTORY, 10, durability=KEEP))
    await handed(log, 1)
    log.answer()
    first = await one
    await rig.append(session, [*HISTORY, 7], 20, int(first.clock[0]))
    assert len(log.holds()) == 1, "the first version"
    removal = asyncio.create_task(rig.ask(Remove(tail_keys(HISTORY[:4], session), KEEP)))
    await handed(log, 2)
    await settled(rig, log)
    await removal
    assert log.holds() == {}


async def test_a_durable_removal_of_what_another_just_removed_waits_for_the_log_too() -> None:
    rig, log = slow()
    put = asyncio.create_task(rig.put(A, durability=KEEP))
    await handed(log, 1)
    await settled(rig, log)
    await put
    await rig.ask(Remove(keys_of(A)))
    again = asyncio.create_task(rig.ask(Remove(keys_of(A), KEEP)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not again.done(), "a crash now would bring it back"
    await settled(rig, log)
    assert not (await again).found.any()
    assert log.holds() == {}


async def test_a_drop_that_found_no_room_is_written_later() -> None:
    rig, log = slow()
    put = asyncio.create_task(rig.put(A, durability=KEEP))
    await handed(log, 1)
    log.answer()
    await put
    removal = asyncio.create_task(rig.ask(Remove(keys_of(A), KEEP)))
    await handed(log, 2)
    log.answer(full=True)
    with pytest.raises(LogFull):
        await removal
    again = asyncio.create_task(rig.ask(Remove(keys_of(A), KEEP)))
    await handed(log, 3)
    log.answer(full=True)
    with pytest.raises(LogFull):
        await again
    rig.shard.sweep(rig.now_ms)
    await settled(rig, log)
    assert log.kinds == [PUT, REMOVE, REMOVE, REMOVE]
    assert log.holds() == {}


async def test_a_drop_that_found_no_room_does_not_take_what_was_put_since() -> None:
    rig, log = slow()
    for full in (False, True):
        put = asyncio.create_task(rig.put(A, durability=KEEP))
        await handed(log, 1 + 2 * full)
        log.answer()
        answer = await put
        if not full:
            await rig.ask(Remove(keys_of(A)))
            log.answer(full=True)
            await asyncio.sleep(0)
    rig.shard.sweep(rig.now_ms)
    await settled(rig, log)
    assert log.holds() == {key(): (int(answer.clock[0]), TOKENS)}


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_whatever_happens_the_log_ends_where_the_shard_is(seed: int) -> None:
    """Few keys, many at once; a log that is slow and sometimes has no room; deadlines that pass."""
    random = Random(seed)
    rig, log = slow(blocks=10)
    _check_answers(rig, log)
    sessions = [await rig.open() for _ in range(2)]
    tasks: set[asyncio.Task[None]] = set()
    for _ in range(250):
        tasks.add(asyncio.create_task(_one(rig, random, sessions)))
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        if random.random() < 0.4:
            log.answer(random.randint(1, 3), full=random.random() < 0.25)
        if random.random() < 0.1:
            rig.now_ms += random.choice([1, 200, 400])
            rig.shard.sweep(rig.now_ms)
        tasks = {task for task in tasks if not task.done() or task.result()}
    await settled(rig, log, tasks)
    await asyncio.gather(*tasks)
    pool, journal = rig.shard.pool, rig.shard.core.journal
    live = np.flatnonzero(pool.fill() >= 0)
    there = {pool.keys(live)[row].tobytes(): slot for row, slot in enumerate(live.tolist())}
    held = log.holds()
    assert set(held) <= set(there), "what is gone would come back"
    for name, slot in there.items():
        assert bool(journal.known[slot]) == (name in held)
        if journal.logged[slot]:
            assert _same(pool, slot, held[name])
    assert not len(journal._claims)
    assert rig.shard.credits.in_flight == 0
    pool.sweep(rig.now_ms + 10_000)
    assert pool.free + len(live) == len(pool)


def _check_answers(rig: Rig, log: SlowLog) -> None:
    """What is answered as durable is in the log as it is in the pool, at that very moment."""

    def checked(publish: Callable[..., Published]) -> Callable[..., Published]:
        def check(flight: Any, *rest: Any) -> Published:
            answer = publish(flight, *rest)
            slots = answer.slot[answer.slot >= 0] if flight.request.durability else np.zeros(0, np.int64)
            pool, held = rig.shard.pool, log.holds()
            for slot, name in zip(slots.tolist(), pool.keys(slots), strict=True):
                assert _same(pool, slot, held.get(name.tobytes())), "acknowledged, and not in the log"
            return answer

        return check

    for side in (rig.shard._puts, rig.shard._tails):
        side.publish = checked(side.publish)  # type: ignore[attr-defined]


def _same(pool: Pool, slot: int, held: tuple[int, int] | None) -> bool:
    """Of two durable puts of one block the log may have the later one: the same bytes with a higher clock."""
    clock, valid = int(pool.clocks(np.array([slot]))[0]), int(pool.valid(np.array([slot]))[0])
    tail = bool(pool.arena.headers["flags"][slot] & FLAG_TAIL)
    return held is not None and held[1] == valid and (held[0] == clock or (held[0] > clock and not tail))


async def _one(rig: Rig, random: Random, sessions: list[int]) -> None:
    """One operation; it may be refused."""
    durability = random.choice([Durability.NONE, KEEP])
    tokens = [random.randrange(3)] * (TOKENS * random.randint(1, 3))
    deadline = random.choice([250, 100_000])
    choice = random.random()
    try:
        if choice < 0.5:
            message = rig.put_message(tokens, durability=durability)
            await rig.ask(message, deadline_ms=deadline)
        elif choice < 0.75:
            await rig.ask(Remove(keys_of(tokens)[-1:], durability), deadline_ms=deadline)
        else:
            await _append(rig, random, random.choice(sessions), durability, deadline)
    except StoreError:
        pass


async def _append(rig: Rig, random: Random, session: int, durability: Durability, deadline: int) -> None:
    """The next tokens of one of two tails, or its full block."""
    start = [90 + random.randrange(2)] * TOKENS
    found = await rig.ask(Lookup(tail_keys(start, session)))
    await rig.ask(OpenSession(session))
    expected, valid = (int(found.clock[0]), int(found.valid[0])) if found.slot[0] >= 0 else (0, 0)
    tokens = [*start, *range(min(TOKENS, valid + random.randint(1, 2)))]
    message = rig.append_message(session, tokens, 5, expected, durability=durability)
    await rig.ask(message, deadline_ms=deadline)
