"""What a shard answers to each message, the refusals among them."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from kvstore.arena import Arena
from kvstore.errors import (
    BadRequest,
    ChecksumMismatch,
    DeadlineExceeded,
    NoRun,
    PoolExhausted,
    SessionUnknown,
    StagingRejected,
)
from kvstore.messages import (
    MAX_LEASES_AT_ONCE,
    CloseSession,
    Durability,
    Envelope,
    Lease,
    Lookup,
    Miss,
    OpenSession,
    Ping,
    Pong,
    Put,
    ReadReport,
    Remove,
    Touch,
)
from kvstore.pool import LEASE_GRACE_MS, State
from kvstore.session import Session
from kvstore.shard.leases import PINNED_MS
from tests.kvstore.shard_rig import LAYOUT, TOKENS, Rig, chain_of, fill_of, keys_of

A, B, C = list(range(12)), list(range(100, 112)), list(range(200, 212))
"""Chains of three blocks each."""


def counts(rig: Rig) -> dict[str, int]:
    found = np.bincount(rig.shard.pool.states(rig.now_ms), minlength=len(State))
    return {state.name.lower(): int(found[state]) for state in State if found[state]}


async def test_what_was_put_is_found_with_its_bytes() -> None:
    rig = Rig()
    answer = await rig.put(A)
    assert not answer.existed.any()
    located = await rig.lookup(A)
    assert located.slot.tolist() == answer.slot.tolist()
    assert located.clock.tolist() == answer.clock.tolist()
    assert located.valid.tolist() == [TOKENS] * 3
    assert rig.read(keys_of(A), located) == [fill_of(digest) for digest in chain_of(A).digests]
    assert rig.shard.meters.put_blocks == 3
    assert rig.shard.meters.put_bytes == 3 * LAYOUT.block_bytes


async def test_a_key_that_is_there_is_kept_as_it_is() -> None:
    rig = Rig()
    first = await rig.put(A[:8])
    again = await rig.put(A, fills=[1, 2, 3])
    assert again.existed.tolist() == [True, True, False]
    assert again.slot[:2].tolist() == first.slot.tolist()
    assert rig.read(keys_of(A), again)[:2] == [fill_of(digest) for digest in chain_of(A[:8]).digests]
    assert counts(rig) == {"free": 61, "cached": 3}


async def test_a_key_named_twice_in_one_put_gets_one_slot() -> None:
    rig = Rig()
    put = rig.put_message(A[:8])
    rows = np.array([0, 1, 0])
    answer = await rig.ask(
        Put(put.keys[rows], put.staging[rows], put.data_sums[rows], put.valid[rows], put.chains[rows])
    )
    assert answer.slot[0] == answer.slot[2]
    assert answer.existed.tolist() == [False, False, True]
    assert counts(rig) == {"free": 62, "cached": 2}


async def test_an_edited_history_shares_only_what_comes_before_the_edit() -> None:
    rig = Rig()
    await rig.put(A)
    edited = [*A[:5], 77, *A[6:]]
    assert ((await rig.lookup(edited)).slot >= 0).tolist() == [True, False, False]
    assert ((await rig.lookup(A[:8])).slot >= 0).tolist() == [True, True]
    assert ((await rig.lookup([*A, *range(50, 54)])).slot >= 0).tolist() == [True, True, True, False]


async def test_a_prefix_lookup_stops_at_the_first_miss() -> None:
    rig = Rig()
    await rig.put(A)
    await rig.ask(Remove(keys_of(A)[1:2]))
    located = await rig.lookup(A, prefix=True, lease_ms=1_000)
    assert (located.slot >= 0).tolist() == [True, False, False]
    assert located.miss.tolist() == [Miss.NONE, Miss.REMOVED, Miss.NONE]
    assert rig.shard.meters.lookup_blocks == {"hit": 1, "miss": 1}
    assert (await rig.lookup(A)).slot[2] >= 0
    assert rig.shard.meters.lookup_blocks == {"hit": 3, "miss": 2}
    assert rig.shard.meters.lookup_misses == {"absent": 0, "evicted": 0, "expired": 0, "removed": 2}


async def test_a_miss_says_why() -> None:
    rig = Rig(blocks=3)
    assert (await rig.lookup(A)).miss.tolist() == [Miss.ABSENT] * 3
    await rig.put(A)
    await rig.put(B)
    assert (await rig.lookup(A)).miss.tolist() == [Miss.EVICTED] * 3
    await rig.ask(Remove(keys_of(B)))
    assert (await rig.lookup(B)).miss.tolist() == [Miss.REMOVED] * 3
    session = await rig.open(ttl_ms=1_000)
    await rig.put(C, session=session)
    rig.now_ms += 1_000
    rig.shard.sweep(rig.now_ms)
    assert (await rig.lookup(C)).miss.tolist() == [Miss.EXPIRED] * 3
    assert rig.shard.meters.evicted_blocks == {"capacity": 3, "run": 0}


async def test_a_staging_run_that_changed_is_refused_and_nothing_is_kept() -> None:
    rig = Rig()
    put = rig.put_message(A)
    rig.staging.data[put.staging[1], 3] ^= 1
    with pytest.raises(ChecksumMismatch, match="number 1"):
        await rig.ask(put)
    assert counts(rig) == {"free": 64}
    assert (await rig.lookup(A)).slot.tolist() == [-1, -1, -1]
    assert rig.shard.meters.put_refusals["checksum"] == 1
    assert rig.shard.meters.operations["put"].results == {"ok": 0, "refused": 1, "error": 0}
    assert rig.shard.credits.in_flight == 0


async def test_a_staging_slot_outside_the_arena_or_no_arena_is_refused() -> None:
    rig = Rig()
    put = rig.put_message(A)
    with pytest.raises(StagingRejected):
        await rig.ask(Put(put.keys, put.staging + 254, put.data_sums, put.valid, put.chains))
    with pytest.raises(StagingRejected):
        await rig.shard.answer(Envelope(), put, None)
    other = Arena.create("kv-other", 8, 2 * LAYOUT.slot_bytes, 2 * LAYOUT.block_bytes, pool=False)
    with pytest.raises(StagingRejected):
        await rig.shard.answer(Envelope(), put, other)
    assert counts(rig) == {"free": 64}


async def test_columns_that_do_not_fit_are_refused() -> None:
    rig = Rig()
    put = rig.put_message(A)
    with pytest.raises(BadRequest, match="data_sums"):
        await rig.ask(Put(put.keys, put.staging, put.data_sums[:2], put.valid, put.chains))
    with pytest.raises(BadRequest, match="valid tokens"):
        await rig.ask(Put(put.keys, put.staging, put.data_sums, put.valid + 1, put.chains))
    with pytest.raises(BadRequest, match="log"):
        await rig.put(A, durability=Durability.LOG)


async def test_a_full_pool_of_held_blocks_refuses_at_once() -> None:
    rig = Rig(blocks=4)
    session = await rig.open()
    await rig.put(A, session=session)
    with pytest.raises(PoolExhausted):
        await rig.put(B)
    assert rig.shard.meters.put_refusals["no_space"] == 1
    assert ((await rig.lookup(A)).slot >= 0).all()
    await rig.ask(CloseSession(session))
    assert ((await rig.put(B)).slot >= 0).all()


async def test_a_put_does_not_make_room_by_evicting_its_own_prefix() -> None:
    rig = Rig(blocks=3)
    await rig.put(A[:4])
    await rig.put(B[:8])
    assert ((await rig.put(A)).slot >= 0).all()
    assert ((await rig.lookup(A)).slot >= 0).all()
    with pytest.raises(PoolExhausted):
        await rig.put([*A, 50, 51, 52, 53])
    assert ((await rig.lookup(A)).slot >= 0).all()


async def test_leased_blocks_stay_until_their_lease_ends_or_is_released() -> None:
    rig = Rig(blocks=3)
    await rig.put(A)
    located = await rig.lookup(A, lease_ms=1_000)
    with pytest.raises(PoolExhausted):
        await rig.put(B)
    rig.now_ms += 1_000 + LEASE_GRACE_MS
    rig.shard.sweep(rig.now_ms)
    assert rig.shard.meters.leases_expired == 1
    await rig.put(B)
    assert rig.read(keys_of(A), located) == [None] * 3

    located = await rig.lookup(B, lease_ms=1_000)
    second = await rig.lookup(B, lease_ms=1_000)
    await rig.ask(Lease(np.array([located.lease], np.uint64)))
    with pytest.raises(PoolExhausted):
        await rig.put(C)
    assert (await rig.ask(Lease(np.array([second.lease, 12345], np.uint64)))).until_ms.tolist() == [rig.now_ms, 0]
    assert ((await rig.put(C)).slot >= 0).all()


async def test_a_lease_is_renewed_and_an_ended_one_is_not() -> None:
    rig = Rig(blocks=3)
    await rig.put(A)
    lease = np.array([(await rig.lookup(A, lease_ms=1_000)).lease], np.uint64)
    rig.now_ms += 900
    assert (await rig.ask(Lease(lease, lease_ms=1_000))).until_ms.tolist() == [rig.now_ms + 1_000]
    rig.now_ms += 900
    with pytest.raises(PoolExhausted):
        await rig.put(B)
    rig.now_ms += 100
    assert (await rig.ask(Lease(lease, lease_ms=1_000))).until_ms.tolist() == [0]


async def test_a_pin_has_no_end_but_its_clients() -> None:
    rig = Rig(blocks=3)
    await rig.put(A)
    lease = np.array([(await rig.ask(Lookup(keys_of(A), lease_ms=1_000), client=7)).lease], np.uint64)
    assert (await rig.ask(Lease(lease, pin=1), client=7)).until_ms.tolist() == [PINNED_MS]
    assert (await rig.ask(Lease(lease, pin=1), client=7)).until_ms.tolist() == [PINNED_MS]
    assert (rig.shard.leases, rig.shard.pins) == (0, 1)
    rig.now_ms += 1_000_000
    rig.shard.sweep(rig.now_ms)
    assert (await rig.ask(Lease(lease, pin=-1), client=7)).until_ms.tolist() == [PINNED_MS]
    with pytest.raises(PoolExhausted):
        await rig.put(B)
    assert (await rig.ask(Lease(lease, pin=-1, lease_ms=500), client=7)).until_ms.tolist() == [rig.now_ms + 500]
    await rig.ask(Lease(lease, pin=1), client=7)
    await rig.ask(Lease(lease, pin=1), client=7)
    rig.shard.forget_client(7)
    assert (rig.shard.leases, rig.shard.pins) == (0, 0)
    rig.now_ms += 1_000
    assert ((await rig.put(B)).slot >= 0).all()


async def test_a_lease_is_its_clients_and_nobody_elses() -> None:
    rig = Rig(blocks=3)
    await rig.put(A)
    first = (await rig.ask(Lookup(keys_of(A), lease_ms=60_000), client=7)).lease
    second = (await rig.ask(Lookup(keys_of(A), lease_ms=60_000), client=8)).lease
    assert abs(first - second) > 1 << 20, "numbers that can be guessed"
    lease = np.array([first], np.uint64)
    await rig.ask(Lease(lease, pin=1), client=7)
    for pin, lease_ms in ((-1, 0), (0, 0), (0, 5), (1, 0)):
        assert (await rig.ask(Lease(lease, lease_ms=lease_ms, pin=pin), client=8)).until_ms.tolist() == [0]
    rig.shard.forget_client(8)
    rig.now_ms += 1_000_000
    rig.shard.sweep(rig.now_ms)
    with pytest.raises(PoolExhausted):
        await rig.put(B)
    assert (rig.shard.leases, rig.shard.pins) == (0, 1)


@pytest.mark.parametrize("pin", [1, -1, 0])
async def test_one_message_acts_on_few_leases_and_on_each_once(pin: int) -> None:
    """Or 160 KB would keep a shard busy for many seconds: every row is work on all the lease's blocks."""
    rig = Rig(blocks=3)
    await rig.put(A)
    leases = [(await rig.lookup(A, lease_ms=1_000)).lease for _ in range(MAX_LEASES_AT_ONCE + 1)]
    with pytest.raises(BadRequest, match="twice"):
        await rig.ask(Lease(np.array([leases[0], leases[1], leases[0]], np.uint64), 5, pin))
    with pytest.raises(BadRequest, match="at most"):
        await rig.ask(Lease(np.array(leases, np.uint64), 5, pin))
    until = (await rig.ask(Lease(np.array(leases[1:], np.uint64), 5, pin))).until_ms
    assert (until > 0).all()


async def test_sessions_end_one_by_one_whatever_happens_to_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    await rig.put(A)
    numbers = [await rig.open(ttl_ms=1_000) for _ in range(8)]
    await rig.ask(CloseSession(numbers[3]))
    await rig.ask(OpenSession(numbers[3], ttl_ms=1_000, create=True))
    for number in numbers:
        await rig.ask(Lookup(keys_of(A), session=number))
    end = rig.shard.core.sessions.end

    def fail_once(session: Session, *, expired: bool) -> np.ndarray:
        if session.handle == numbers[1]:
            monkeypatch.undo()
            raise RuntimeError("a fault of our own")
        return end(session, expired=expired)

    monkeypatch.setattr(rig.shard.core.sessions, "end", fail_once)
    rig.now_ms += 1_000
    rig.shard.sweep(rig.now_ms)
    assert [session.handle for session in rig.shard.core.sessions] == [numbers[1]]
    rig.now_ms += 5_000
    rig.shard.sweep(rig.now_ms)
    assert not len(rig.shard.core.sessions)
    assert ((await rig.lookup(A)).slot < 0).all()


async def test_one_run_or_nothing() -> None:
    rig = Rig(blocks=8)
    for start in range(0, 800, 100):
        await rig.put(range(start, start + TOKENS))
    kept = await rig.open()
    await rig.ask(Lookup(np.concatenate([keys_of(range(s, s + TOKENS)) for s in (100, 300, 500, 700)]), session=kept))
    with pytest.raises(NoRun):
        await rig.put(range(900, 908), one_run=True)
    assert ((await rig.put(range(900, 908))).slot >= 0).all()


async def test_touched_blocks_outlive_others_and_reports_are_counted() -> None:
    rig = Rig(blocks=6)
    old, new = await rig.put(A), await rig.put(B)
    stale = old.generation.copy()
    stale[0] += 2
    rig.now_ms += 10
    reads = ReadReport(batches=1, blocks_ok=2, blocks_torn=1, bytes=100, descriptors=1, seconds=(0.001,))
    await rig.ask(Touch(np.array([*old.slot, 99, -1]), np.array([*stale, 2, 2], np.uint64), reads))
    await rig.put(C)
    assert ((await rig.lookup(A)).slot >= 0).all()
    assert ((await rig.lookup(B)).slot < 0).all()
    assert rig.shard.meters.read_blocks == {"ok": 2, "torn": 1, "recycled": 0, "corrupt": 0, "expired": 0}
    assert len(new.slot) == 3


async def test_clocks_are_merged_and_rise_with_every_publication() -> None:
    rig = Rig()
    first = await rig.put(A)
    await rig.ask(Ping(), clock=1_000)
    second = await rig.put(B)
    assert first.clock[0] < 1_000 < second.clock[0]
    assert rig.shard.clock.now >= second.clock[0]
    assert isinstance(await rig.ask(Ping()), Pong)


async def test_late_is_refused() -> None:
    rig = Rig()
    put = rig.put_message(A)
    for message in (put, Lookup(keys_of(A))):
        with pytest.raises(DeadlineExceeded):
            await rig.shard.answer(Envelope(deadline_ms=0), message, rig.staging)
    assert counts(rig) == {"free": 64}
    assert rig.shard.meters.put_refusals["deadline"] == 1


async def test_a_session_holds_what_it_puts_and_finds_until_it_ends() -> None:
    rig = Rig(blocks=6)
    await rig.put(A)
    session = await rig.open(session_class="chat", ttl_ms=1_000)
    await rig.lookup(A, session=session)
    await rig.put(B, session=session)
    assert counts(rig) == {"used": 6}
    other = await rig.open(session_class="chat", ttl_ms=5_000)
    await rig.lookup(B[:4], session=other)
    state = await rig.ask(OpenSession(session))
    assert (state.alive, state.blocks) == (True, 6)
    (figures,) = rig.shard.session_figures()
    assert (figures.session_class, figures.active, figures.idle, figures.blocks) == ("chat", 2, 0, 6)
    rig.now_ms += 1_000
    rig.shard.sweep(rig.now_ms)
    assert ((await rig.lookup(A)).slot < 0).all(), "expiry removes what only it held"
    assert ((await rig.lookup(B)).slot >= 0).tolist() == [True, False, False]
    assert rig.shard.meters.session("chat").closed == {"closed": 0, "expired": 1}


async def test_a_closed_session_leaves_its_blocks_cached_or_forgets_them() -> None:
    rig = Rig(blocks=6)
    kept, gone = await rig.open(), await rig.open()
    await rig.put(A, session=kept)
    await rig.put(B, session=gone)
    assert (await rig.ask(CloseSession(kept))).alive
    assert (await rig.ask(CloseSession(gone, forget=True))).blocks == 3
    assert ((await rig.lookup(A)).slot >= 0).all()
    assert (await rig.lookup(B)).miss.tolist() == [Miss.REMOVED] * 3
    assert not (await rig.ask(CloseSession(kept))).alive
    assert counts(rig)["cached"] == 3


async def test_a_return_after_expiry_is_told_apart_and_counted_once() -> None:
    rig = Rig()
    session = await rig.open(session_class="chat", ttl_ms=1_000)
    rig.now_ms += 400
    assert (await rig.ask(OpenSession(session))).alive
    rig.now_ms += 1_000
    assert not (await rig.ask(OpenSession(session))).alive, "before the sweeper came by"
    rig.shard.sweep(rig.now_ms)
    await rig.lookup(A, session=session)
    assert not (await rig.ask(OpenSession(session))).alive
    assert not (await rig.ask(OpenSession(4711))).alive
    meters = rig.shard.meters.session("chat")
    assert meters.returns == {"alive": 1, "expired": 1}
    assert meters.return_gap_seconds.total == pytest.approx(1.4)
    with pytest.raises(SessionUnknown, match="TTL"):
        await rig.put(A, session=session)
    with pytest.raises(SessionUnknown, match="none"):
        await rig.put(A, session=4711)


async def test_a_session_can_be_opened_under_a_handle_from_another_shard() -> None:
    rig = Rig()
    assert (await rig.ask(OpenSession(4711, create=True))).alive
    assert (await rig.ask(OpenSession(4711, ttl_ms=1_000, create=True))).alive
    await rig.put(A, session=4711)
    rig.now_ms += 1_800_000
    again = await rig.ask(OpenSession(4711, create=True))
    assert (again.alive, again.blocks) == (False, 0)
    assert ((await rig.lookup(A)).slot < 0).all()
    await rig.put(A, session=4711)


async def test_removed_blocks_are_gone_for_their_holders_too() -> None:
    rig = Rig(blocks=3)
    session = await rig.open()
    await rig.put(A, session=session)
    located = await rig.lookup(A, lease_ms=1_000)
    assert (await rig.ask(Remove(np.concatenate([keys_of(A), keys_of(B)[:1]])))).found.tolist() == [True] * 3 + [False]
    assert ((await rig.lookup(A)).slot < 0).all()
    assert rig.read(keys_of(A), located) == [fill_of(digest) for digest in chain_of(A).digests], "leased: still there"
    with pytest.raises(PoolExhausted):
        await rig.put(B)
    rig.now_ms += 1_000 + LEASE_GRACE_MS
    await rig.put(B)
    assert (await rig.ask(OpenSession(session))).blocks == 0
    await rig.ask(CloseSession(session, forget=True))
    assert ((await rig.lookup(B)).slot >= 0).all()


async def test_hot_chains_show_as_a_share_of_the_last_interval() -> None:
    rig = Rig()
    assert rig.shard.hot_key_share() is None
    for number in range(10):
        await rig.lookup(A if number < 6 else range(number * 100, number * 100 + 4))
    assert rig.shard.hot_key_share() is None
    rig.now_ms += 10_000
    assert rig.shard.hot_key_share() == pytest.approx(0.6)
    rig.now_ms += 10_000
    assert rig.shard.hot_key_share() is None


async def test_concurrent_puts_of_one_key_publish_it_once() -> None:
    rig = Rig()
    put = rig.put_message(A)
    answers = await asyncio.gather(*(rig.ask(put, client=number) for number in range(5)))
    assert sum(int((~answer.existed).sum()) for answer in answers) == 3
    assert {tuple(answer.slot.tolist()) for answer in answers} == {tuple(answers[0].slot.tolist())}
    assert counts(rig) == {"free": 61, "cached": 3}
