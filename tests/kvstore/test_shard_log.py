"""A shard with a log: what was acknowledged comes back, what was refused does not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvstore.errors import BadRequest, DeadlineExceeded, LogFailed, TailConflict
from kvstore.header import sums
from kvstore.log import Batch, Log, LogConfig, Ticket
from kvstore.log import Durability as LogDurability
from kvstore.messages import Append, CloseSession, Durability, Lookup, OpenSession, Remove
from kvstore.meters import Meters
from kvstore.shard.credits import Credits
from kvstore.shard.journal import shape_of
from tests.kvstore.shard_rig import LAYOUT, TOKENS, Rig, chain_of, fill_of, keys_of, tail_keys

A, B = list(range(12)), list(range(100, 112))
HISTORY = [1, 2, 3, 4, 5, 6]
KEEP = Durability.LOG


def opened(directory: Path, blocks: int = 64) -> Rig:
    config = LogConfig(shape_of(LAYOUT), LogDurability.LOG, segment_bytes=1 << 20, layout=LAYOUT.as_json())
    meters = Meters()
    rig = Rig(blocks, log=Log(directory, config, meters), durability=Durability.LOG, meters=meters)
    rig.shard.recover(drop_surplus=True)
    return rig


async def reopened(rig: Rig, directory: Path, blocks: int = 64) -> Rig:
    await rig.shard.close()
    return opened(directory, blocks)


def fills(tokens: list[int]) -> list[int]:
    return [fill_of(digest) for digest in chain_of(tokens).digests]


async def test_durable_puts_come_back_with_their_clocks_and_others_do_not(tmp_path: Path) -> None:
    rig = opened(tmp_path)
    put = await rig.put(A, durability=KEEP)
    await rig.put(B)
    rig = await reopened(rig, tmp_path)
    located = await rig.lookup(A)
    assert located.clock.tolist() == put.clock.tolist()
    assert rig.read(keys_of(A), located) == fills(A)
    assert ((await rig.lookup(B)).slot < 0).all()
    assert (await rig.put(B)).clock[0] > put.clock[0]
    await rig.shard.close()


async def test_a_durable_put_of_a_block_that_was_not_logged_logs_it(tmp_path: Path) -> None:
    rig = opened(tmp_path)
    await rig.put(A)
    assert (await rig.put(A, durability=KEEP)).existed.all()
    rig = await reopened(rig, tmp_path)
    assert rig.read(keys_of(A), await rig.lookup(A)) == fills(A)
    await rig.shard.close()


async def test_evicted_removed_and_expired_blocks_do_not_come_back(tmp_path: Path) -> None:
    rig = opened(tmp_path, blocks=6)
    await rig.put(A, durability=KEEP)
    await rig.put(B, durability=KEEP)
    await rig.put(range(200, 212), durability=KEEP)  # evicts A
    await rig.ask(Remove(keys_of(B)[:1], Durability.LOG))
    session = await rig.open(ttl_ms=1_000)
    await rig.ask(Lookup(keys_of(B)[1:2], session=session))
    rig.now_ms += 1_000
    rig.shard.sweep(rig.now_ms)
    rig = await reopened(rig, tmp_path, blocks=6)
    assert ((await rig.lookup(A)).slot < 0).all()
    assert ((await rig.lookup(B)).slot >= 0).tolist() == [False, False, True]
    assert ((await rig.lookup(range(200, 212))).slot >= 0).all()
    await rig.shard.close()


async def test_tails_come_back_as_their_last_version_and_go_on(tmp_path: Path) -> None:
    rig = opened(tmp_path)
    session = await rig.open()
    first = await rig.append(session, HISTORY, 10, durability=KEEP, rows=2)
    message = rig.append_message(session, [*HISTORY, 7], 20, int(first.clock[0]), durability=KEEP, rows=2)
    second = await rig.ask(_continued(rig, message, 2, 10))
    rig = await reopened(rig, tmp_path)
    keys = tail_keys(HISTORY[:4], session, 2)
    located = await rig.ask(Lookup(keys))
    assert located.clock.tolist() == second.clock.tolist()
    assert located.valid.tolist() == [3, 3]
    valid = _tokens(rig, int(located.slot[0]))
    assert valid[:, :2].max() == 10, "the tokens of the first append"
    assert valid[:, 2].min() == 20, "the token of the second"
    assert (await rig.match(session, HISTORY, rows=2)).agree == 0, "only the last digest is known"
    assert (await rig.match(session, [*HISTORY, 7], rows=2)).agree == 3
    assert (await rig.ask(OpenSession(session))).alive
    clock = int(second.clock[0])
    await rig.append(session, [*HISTORY, 7, 8], 30, clock, durability=KEEP, rows=2)
    rig = await reopened(rig, tmp_path)
    assert ((await rig.ask(Lookup(keys))).slot < 0).all()
    assert rig.read(keys_of([*HISTORY, 7, 8]), await rig.lookup([*HISTORY, 7, 8])) == [None, 30]
    await rig.ask(CloseSession(session))
    await rig.shard.close()


def _continued(rig: Rig, message: Append, tokens: int, fill: int) -> Append:
    """The append with the first `tokens` of its blocks as those of the version before were."""
    for row, slot in enumerate(message.staging.tolist()):
        _planes(rig.staging.data[slot])[:, :tokens] = fill + row
    return replace(message, data_sums=sums(rig.staging.data[message.staging]))


def _planes(data: np.ndarray) -> np.ndarray:
    """A block as `[planes, tokens, bytes]`."""
    return data.reshape(2 * LAYOUT.heads, TOKENS, LAYOUT.head_dim)


def _tokens(rig: Rig, slot: int) -> np.ndarray:
    """`[planes, tokens]`: the first byte of each token's row."""
    return _planes(rig.shard.pool.arena.data[slot])[:, :, 0]


async def test_an_append_that_changes_the_tokens_before_comes_back_as_it_was_read(tmp_path: Path) -> None:
    """What was acknowledged and read is what a recovery finds, not a mix of two versions."""
    rig = opened(tmp_path)
    session = await rig.open()
    first = await rig.append(session, HISTORY, 10, durability=KEEP)
    second = await rig.append(session, [*HISTORY, 7], 20, int(first.clock[0]), durability=KEEP)
    key = tail_keys(HISTORY[:4], session)
    assert rig.read(key, second) == [20]
    rig = await reopened(rig, tmp_path)
    assert rig.read(key, await rig.ask(Lookup(key))) == [20]
    await rig.shard.close()


async def test_an_append_that_changes_nothing_before_writes_its_own_tokens_only(tmp_path: Path) -> None:
    rig = opened(tmp_path)
    session = await rig.open()
    first = await rig.append(session, HISTORY, 10, durability=KEEP)
    before = rig.shard.meters.wal_acknowledged_bytes
    message = rig.append_message(session, [*HISTORY, 7], 20, int(first.clock[0]), durability=KEEP)
    await rig.ask(_continued(rig, message, 2, 10))
    assert rig.shard.meters.wal_acknowledged_bytes - before == LAYOUT.block_bytes // TOKENS
    await rig.shard.close()


async def test_a_durable_append_to_a_tail_that_was_not_logged_logs_all_of_it(tmp_path: Path) -> None:
    rig = opened(tmp_path)
    session = await rig.open()
    first = await rig.append(session, HISTORY, 10)
    await rig.append(session, [*HISTORY, 7], 20, int(first.clock[0]), durability=KEEP)
    rig = await reopened(rig, tmp_path)
    located = await rig.ask(Lookup(tail_keys(HISTORY[:4], session)))
    assert _tokens(rig, int(located.slot[0]))[:, :3].min() == 20
    await rig.shard.close()


async def test_a_smaller_pool_is_refused_or_told_to_lose_what_does_not_fit(tmp_path: Path) -> None:
    rig = opened(tmp_path)
    for start in range(0, 800, 100):
        await rig.put(range(start, start + 8), durability=KEEP)
    await rig.shard.close()
    config = LogConfig(shape_of(LAYOUT), LogDurability.LOG, segment_bytes=1 << 20, layout=LAYOUT.as_json())
    small = Rig(6, log=Log(tmp_path, config), durability=Durability.LOG)
    with pytest.raises(BadRequest, match=r"holds 16 blocks, the pool 6: start with --blocks 16 .*--drop-surplus"):
        small.shard.recover()
    await small.shard.close()
    rig = opened(tmp_path)
    slots = [(await rig.lookup(range(start, start + 8))).slot for start in range(0, 800, 100)]
    assert (np.concatenate(slots) >= 0).sum() == 16, "nothing was lost by the refused start"
    await rig.shard.close()
    rig = opened(tmp_path, blocks=6)
    found = [(await rig.lookup(range(start, start + 8))).slot >= 0 for start in range(0, 800, 100)]
    assert np.concatenate(found).sum() == 6
    rig = await reopened(rig, tmp_path)
    again = [(await rig.lookup(range(start, start + 8))).slot >= 0 for start in range(0, 800, 100)]
    assert (np.concatenate(again) == np.concatenate(found)).all()
    await rig.shard.close()


class HeldLog:
    """A log whose device answers when the test says so."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.tickets: list[Ticket] = []
        self.failure: LogFailed | None = None

    def append(self, batch: Batch, loop: asyncio.AbstractEventLoop | None = None, traceparent: str = "") -> Ticket:
        ticket = Ticket(batch, loop)
        self.batches.append(batch)
        self.tickets.append(ticket)
        return ticket

    def release(self, error: Exception | None = None) -> None:
        for ticket in self.tickets:
            assert ticket.future is not None
            if not ticket.future.done():
                ticket.future.set_exception(error) if error else ticket.future.set_result(None)

    def close(self) -> None:
        pass

    def kinds(self) -> list[int]:
        return [int(kind) for batch in self.batches for kind in batch.headers["kind"]]


def held(**options: object) -> tuple[Rig, HeldLog]:
    log = HeldLog()
    return Rig(log=log, durability=Durability.LOG_SYNC, **options), log  # type: ignore[arg-type]


async def until(condition: object) -> None:
    async with asyncio.timeout(10):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0)


async def test_nothing_is_found_before_the_log_has_answered() -> None:
    rig, log = held()
    put = asyncio.create_task(rig.put(A, durability=KEEP))
    await until(lambda: log.tickets)
    assert ((await rig.lookup(A)).slot < 0).all()
    assert not put.done()
    log.release()
    answer = await put
    assert (await rig.lookup(A)).slot.tolist() == answer.slot.tolist()


async def test_a_put_whose_deadline_passed_is_abandoned_and_told_in_time() -> None:
    rig, log = held()
    put = asyncio.create_task(rig.ask(rig.put_message(A, durability=KEEP), deadline_ms=30))
    with pytest.raises(DeadlineExceeded):
        await put
    assert not log.tickets[0].future.done(), "answered while the log still stalls"  # type: ignore[union-attr]
    rig.now_ms += 30
    log.release()
    await until(lambda: not rig.shard._background)
    assert ((await rig.lookup(A)).slot < 0).all()
    assert rig.shard.pool.free == len(rig.shard.pool)
    assert rig.shard.credits.in_flight == 0
    assert log.kinds() == [1, 1, 1, 4, 4, 4], "what was logged is taken back"


async def test_a_put_whose_asker_leaves_ends_by_itself() -> None:
    rig, log = held()
    put = asyncio.create_task(rig.put(A, durability=KEEP))
    await until(lambda: log.tickets)
    put.cancel()
    await asyncio.gather(put, return_exceptions=True)
    log.release()
    await until(lambda: not rig.shard._background)
    assert rig.read(keys_of(A), await rig.lookup(A)) == fills(A)
    assert rig.shard.credits.in_flight == 0


async def test_a_failed_log_publishes_nothing_and_stops_the_shard() -> None:
    rig, log = held()
    put = asyncio.create_task(rig.put(A, durability=KEEP))
    await until(lambda: log.tickets)
    log.failure = LogFailed("cannot flush: the shard must stop")
    log.release(log.failure)
    with pytest.raises(LogFailed):
        await put
    assert rig.shard.pool.free == len(rig.shard.pool)
    assert rig.shard.meters.put_refusals["log_failed"] == 1
    assert rig.shard.meters.operations["put"].results["error"] == 1
    for wrong in (rig.lookup(A), rig.put(B)):
        with pytest.raises(LogFailed):
            await wrong
    with pytest.raises(LogFailed):
        rig.shard.sweep(rig.now_ms)


async def test_the_tail_takes_one_append_at_a_time_and_a_late_one_is_taken_back() -> None:
    rig, log = held()
    session = await rig.open()
    one = asyncio.create_task(rig.append(session, HISTORY, 10, durability=KEEP))
    await until(lambda: log.tickets)
    log.release()
    first = await one
    message = rig.append_message(session, [*HISTORY, 7], 20, int(first.clock[0]), durability=KEEP)
    message = _continued(rig, message, 2, 10)
    late = asyncio.create_task(rig.ask(message, deadline_ms=30))
    await until(lambda: len(log.tickets) == 2)
    with pytest.raises(TailConflict, match="under way"):
        await rig.append(session, [*HISTORY, 7], 20, int(first.clock[0]))
    with pytest.raises(DeadlineExceeded):
        await late
    rig.now_ms += 30
    log.release()
    await until(lambda: not rig.shard._background)
    assert log.kinds() == [1, 2, 1], "the version before is what a recovery shall find"
    assert bytes(log.batches[2].payloads[0]) == bytes([10]) * LAYOUT.block_bytes  # type: ignore[arg-type]
    log.release()
    key = tail_keys(HISTORY[:4], session)
    assert rig.read(key, await rig.ask(Lookup(key))) == [10]
    assert rig.shard.pool.free == len(rig.shard.pool) - 1


async def test_puts_that_wait_for_the_log_cannot_fill_the_pool_and_nobody_starves() -> None:
    size = LAYOUT.block_bytes
    rig, log = held(blocks=64, credits=Credits(client_bytes=4 * size, total_bytes=6 * size))
    greedy = [
        asyncio.create_task(rig.ask(rig.put_message(range(n * 100, n * 100 + 8), durability=KEEP), client=1))
        for n in range(20)
    ]
    await until(lambda: len(log.tickets) == 2)
    modest = asyncio.create_task(rig.ask(rig.put_message(A[:8], durability=KEEP), client=2))
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(log.tickets) == 3, "two of the greedy client, one of the other"
    assert rig.shard.pool.free == 64 - 6
    log.release()
    await modest
    assert sum(task.done() for task in greedy) <= 3
    while not all(task.done() for task in greedy):
        log.release()
        await asyncio.sleep(0)
    assert rig.shard.credits.in_flight == 0
    assert rig.shard.credits.waiting == 0


async def test_waiting_for_credits_ends_with_the_deadline() -> None:
    size = LAYOUT.block_bytes
    rig, log = held(credits=Credits(client_bytes=2 * size))
    first = asyncio.create_task(rig.put(A[:8], durability=KEEP))
    await until(lambda: log.tickets)
    with pytest.raises(DeadlineExceeded, match="credits"):
        await rig.ask(rig.put_message(B, durability=KEEP), deadline_ms=20)
    assert rig.shard.credits.waiting == 0
    log.release()
    await first
    assert (rig.shard.credits.waiting, rig.shard.credits.in_flight) == (0, 0)
