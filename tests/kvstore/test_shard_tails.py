"""Tails: versions, conflicts, matching by content, and the way into a full block."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from kvstore.errors import BadRequest, ChecksumMismatch, SessionUnknown, TailConflict
from kvstore.header import FLAG_TAIL
from kvstore.messages import Append, CloseSession, Lookup, Miss, Remove
from kvstore.pool import LEASE_GRACE_MS
from tests.kvstore.shard_rig import Rig, keys_of, tail_keys

HISTORY = [1, 2, 3, 4, 5, 6]
"""One full block and a tail of two tokens (blocks have four)."""


async def test_every_append_is_a_new_version_in_a_fresh_slot() -> None:
    rig = Rig()
    session = await rig.open()
    first = await rig.append(session, HISTORY, 10)
    second = await rig.append(session, [*HISTORY, 7], 20, int(first.clock[0]))
    assert second.slot[0] != first.slot[0]
    assert second.clock[0] > first.clock[0]
    located = await rig.ask(Lookup(tail_keys(HISTORY[:4], session)))
    assert (located.slot[0], located.valid[0], located.clock[0]) == (second.slot[0], 3, second.clock[0])
    assert rig.read(tail_keys(HISTORY[:4], session), located) == [20]
    assert rig.shard.pool.arena.headers["flags"][int(second.slot[0])] == FLAG_TAIL


async def test_an_old_version_can_be_read_while_its_lease_runs_and_not_after() -> None:
    rig = Rig(blocks=3)
    session = await rig.open()
    first = await rig.append(session, HISTORY, 10)
    key = tail_keys(HISTORY[:4], session)
    leased = await rig.ask(Lookup(key, lease_ms=1_000))
    second = await rig.append(session, [*HISTORY, 7], 20, int(first.clock[0]))
    assert rig.read(key, leased) == [10], "a snapshot"
    rig.now_ms += 1_000 + LEASE_GRACE_MS
    rig.shard.sweep(rig.now_ms)
    await rig.append(session, [*HISTORY, 7], 30, int(second.clock[0]))  # the same again: nothing new
    await rig.put(range(50, 58))
    assert rig.read(key, leased) == [None]


async def test_only_the_tokens_that_agree_are_matched() -> None:
    rig = Rig()
    session = await rig.open()
    await rig.append(session, [*HISTORY, 7], 10)
    for asked, agree in [
        (HISTORY, 2),
        ([*HISTORY, 7], 3),
        ([1, 2, 3, 4, 5, 99, 7], 1),
        ([1, 2, 3, 4, 99, 6, 7], 0),
        ([1, 2, 3, 4, 5], 1),
        ([1, 2, 3, 99, 5, 6, 7], 0),
    ]:
        found = await rig.match(session, asked)
        assert found.agree == agree, asked
        assert (found.located.slot[0] >= 0) == (agree > 0)


async def test_two_histories_that_differ_only_inside_the_tail_never_share_it() -> None:
    rig = Rig()
    one, two = await rig.open(), await rig.open()
    await rig.append(one, [*HISTORY, 7], 10)
    await rig.append(two, [*HISTORY, 8], 20)
    key_one, key_two = tail_keys(HISTORY[:4], one), tail_keys(HISTORY[:4], two)
    for session, key, history, other, fill in ((one, key_one, 7, 8, 10), (two, key_two, 8, 7, 20)):
        assert (await rig.match(session, [*HISTORY, history])).agree == 3
        assert (await rig.match(session, [*HISTORY, other])).agree == 2
        assert rig.read(key, await rig.ask(Lookup(key))) == [fill]
    # When both are full their blocks have keys of their own, though they differ in one token.
    for session, token, fill in ((one, 7, 11), (two, 8, 21)):
        clock = int((await rig.ask(Lookup(tail_keys(HISTORY[:4], session)))).clock[0])
        await rig.append(session, [*HISTORY, token, 9], fill, clock)
        full = keys_of([*HISTORY, token, 9])
        assert rig.read(full, await rig.ask(Lookup(full))) == [None, fill]


async def test_an_append_that_does_not_continue_the_tail_is_refused() -> None:
    rig = Rig()
    session = await rig.open()
    first = await rig.append(session, HISTORY, 10)
    clock = int(first.clock[0])
    for tokens, expected in [
        ([*HISTORY, 7], 0),
        ([*HISTORY, 7], clock + 1),
        ([1, 2, 3, 4, 5, 99, 7], clock),
        ([1, 2, 3, 4, 5], clock),
    ]:
        with pytest.raises(TailConflict):
            await rig.append(session, tokens, 20, expected)
    assert rig.read(tail_keys(HISTORY[:4], session), await rig.ask(Lookup(tail_keys(HISTORY[:4], session)))) == [10]
    with pytest.raises(TailConflict):
        await rig.append(await rig.open(), HISTORY, 20, clock)
    # The way to an edited tail: remove, begin anew.
    await rig.ask(Remove(tail_keys(HISTORY[:4], session)))
    await rig.append(session, [1, 2, 3, 4, 5, 99, 7], 30)
    assert (await rig.match(session, HISTORY)).agree == 1


async def test_a_repeated_append_is_answered_like_the_first() -> None:
    rig = Rig()
    session = await rig.open()
    first = await rig.append(session, HISTORY, 10)
    again = await rig.append(session, HISTORY, 10)
    assert (again.slot[0], again.clock[0], again.existed[0]) == (first.slot[0], first.clock[0], True)
    full = await rig.append(session, [*HISTORY, 7, 8], 20, int(first.clock[0]))
    repeated = await rig.append(session, [*HISTORY, 7, 8], 20, int(first.clock[0]))
    assert (repeated.slot[0], repeated.existed[0]) == (full.slot[0], True)


async def test_a_full_tail_becomes_a_block_and_ends() -> None:
    rig = Rig()
    session, other = await rig.open(), await rig.open()
    first = await rig.append(session, HISTORY, 10, rows=2)
    full = await rig.append(session, [*HISTORY, 7, 8], 20, int(first.clock[0]), rows=2)
    located = await rig.lookup([*HISTORY, 7, 8])
    assert located.slot[1] == full.slot[0]
    located = await rig.ask(Lookup(tail_keys(HISTORY[:4], session, 2)))
    assert located.miss.tolist() == [Miss.REMOVED] * 2
    # Another session that comes to the same tokens finds its block there.
    await rig.append(other, HISTORY, 50, rows=2)
    clock = int((await rig.ask(Lookup(tail_keys(HISTORY[:4], other)))).clock[0])
    again = await rig.append(other, [*HISTORY, 7, 8], 60, clock, rows=2)
    assert again.existed.tolist() == [True, True]
    assert again.slot.tolist() == full.slot.tolist()
    states = np.bincount(rig.shard.pool.states(rig.now_ms), minlength=5)
    rig.shard.sweep(rig.now_ms)
    assert states[3] == 2


async def test_tails_end_with_their_session() -> None:
    rig = Rig()
    session = await rig.open(ttl_ms=1_000)
    await rig.append(session, HISTORY, 10)
    rig.now_ms += 1_000
    assert (await rig.match(session, HISTORY)).agree == 0
    rig.shard.sweep(rig.now_ms)
    found = await rig.match(session, HISTORY)
    assert found.located.miss.tolist() == [Miss.EXPIRED]
    with pytest.raises(SessionUnknown):
        await rig.append(session, HISTORY, 10)
    session = await rig.open()
    await rig.append(session, HISTORY, 10)
    await rig.ask(CloseSession(session))
    rig.shard.sweep(rig.now_ms)
    assert rig.shard.pool.free == len(rig.shard.pool)


async def test_a_refused_append_leaves_the_version_before() -> None:
    rig = Rig()
    session = await rig.open()
    first = await rig.append(session, HISTORY, 10)
    message = rig.append_message(session, [*HISTORY, 7], 20, int(first.clock[0]))
    rig.staging.data[message.staging[0], 0] ^= 1
    with pytest.raises(ChecksumMismatch):
        await rig.ask(message)
    with pytest.raises(BadRequest, match="digests"):
        await rig.ask(
            Append(session, message.keys, message.staging, message.data_sums, 2, message.expected, message.digests)
        )
    full = rig.append_message(session, [*HISTORY, 7, 8], 20, int(first.clock[0]))
    with pytest.raises(BadRequest, match="full_keys"):
        await rig.ask(Append(session, full.keys, full.staging, full.data_sums, 4, full.expected, full.digests))
    await rig.append(session, [*HISTORY, 7], 20, int(first.clock[0]))
    assert rig.shard.pool.free == len(rig.shard.pool) - 2
    rig.shard.sweep(rig.now_ms)
    assert rig.shard.pool.free == len(rig.shard.pool) - 1


async def test_a_key_of_somebody_else_is_no_tail_of_this_session() -> None:
    rig = Rig()
    one, two = await rig.open(), await rig.open()
    await rig.append(one, HISTORY, 10)
    await rig.put(HISTORY[:4])
    stolen = rig.append_message(two, HISTORY, 20, 0)
    for key in (tail_keys(HISTORY[:4], one), keys_of(HISTORY[:4])):
        with pytest.raises(TailConflict, match="in use"):
            await rig.ask(
                Append(two, key, stolen.staging, stolen.data_sums, stolen.valid, stolen.expected, stolen.digests)
            )


async def test_of_two_appends_to_one_version_one_wins() -> None:
    rig = Rig()
    session = await rig.open()
    first = await rig.append(session, HISTORY, 10)
    message = rig.append_message(session, [*HISTORY, 7], 20, int(first.clock[0]))
    edited = rig.append_message(session, [*HISTORY, 9], 20, int(first.clock[0]))
    answers = await asyncio.gather(rig.ask(message), rig.ask(edited), return_exceptions=True)
    assert [type(answer).__name__ for answer in answers] == ["Published", "TailConflict"]
