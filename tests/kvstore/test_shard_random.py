"""Random histories of a shard against a plain model: no key ever answers with other bytes, no claim is broken."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from kvstore.errors import PoolExhausted, SessionUnknown, StoreError, TailConflict
from kvstore.messages import CloseSession, Lease, Located, Lookup, Remove
from kvstore.pool import State
from kvstore.shard.leases import PINNED_MS
from tests.kvstore.shard_rig import TOKENS, Rig, chain_of, fill_of, keys_of, tail_keys

BLOCKS = 8
TTL_MS = 5_000


@st.composite
def _histories(draw: st.DrawFn) -> list[int]:
    """One story, cut off somewhere, perhaps edited in one place: edited, shorter, longer versions of one another."""
    tokens = list(range(1, draw(st.integers(1, 14)) + 1))
    if draw(st.booleans()):
        tokens[draw(st.integers(0, len(tokens) - 1))] = draw(st.integers(100, 102))
    return tokens


histories = _histories()


class Held:
    """What a reader may count on: the located blocks pass the checks, with these bytes, until then."""

    def __init__(self, keys: np.ndarray, located: Located, fills: list[int | None], until_ms: int) -> None:
        self.keys = keys
        self.located = located
        self.fills = fills
        self.until_ms = until_ms


class ShardMachine(RuleBasedStateMachine):
    sessions: Bundle[int] = Bundle("sessions")
    leases: Bundle[Held] = Bundle("leases")

    @initialize()
    def start(self) -> None:
        self.rig = Rig(BLOCKS)
        self.loop = asyncio.new_event_loop()
        self.held: list[Held] = []
        self.session_keys: dict[int, set[bytes]] = {}
        self.used_ms: dict[int, int] = {}
        self.tails: dict[int, tuple[tuple[int, ...], int, int]] = {}
        """session → history, fill, clock of its newest append."""
        self.fill = 0

    def teardown(self) -> None:
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def lives(self, session: int) -> bool:
        return session in self.used_ms and self.rig.now_ms < self.used_ms[session] + TTL_MS

    def drop(self, session: int) -> None:
        self.used_ms.pop(session, None)
        self.session_keys.pop(session, None)
        self.tails.pop(session, None)

    # --- operations -------------------------------------------------------------------------------------------------

    @rule(target=sessions)
    def open(self) -> int:
        session = self.run(self.rig.open(ttl_ms=TTL_MS))
        self.used_ms[session] = self.rig.now_ms
        self.session_keys[session] = set()
        return int(session)

    @rule(session=consumes(sessions), forget=st.booleans())
    def close(self, session: int, forget: bool) -> None:
        state = self.run(self.rig.ask(CloseSession(session, forget)))
        assert state.alive == self.lives(session)
        self.drop(session)

    @rule(tokens=histories, session=st.one_of(st.none(), sessions))
    def put(self, tokens: list[int], session: int | None) -> None:
        keys = keys_of(tokens)
        try:
            self.run(self.rig.put(tokens, session=session or 0))
        except PoolExhausted:
            free = self.rig.shard.pool.free
            assert free < len(keys)
            if session:
                self.used_ms[session] = self.rig.now_ms
            return
        except SessionUnknown:
            assert session is not None
            assert not self.lives(session)
            return
        located = self.run(self.rig.ask(Lookup(keys)))
        assert (located.slot >= 0).all()
        self.check(tokens, located)
        if session:
            self.used_ms[session] = self.rig.now_ms
            self.session_keys[session].update(key.tobytes() for key in keys)

    @rule(tokens=histories)
    def lookup(self, tokens: list[int]) -> None:
        self.check(tokens, self.run(self.rig.lookup(tokens)))

    def check(self, tokens: list[int], located: Located) -> list[int | None]:
        """Where a block was found its bytes are its own."""
        read = self.rig.read(keys_of(tokens), located)
        for row, digest in enumerate(chain_of(tokens).digests):
            assert (read[row] is None) == (located.slot[row] < 0)
            assert read[row] in (None, fill_of(digest))
            assert (located.miss[row] == 0) == (located.slot[row] >= 0)
        return read

    @rule(target=leases, tokens=histories, lease_ms=st.integers(1, 3_000))
    def lease(self, tokens: list[int], lease_ms: int) -> Any:
        located = self.run(self.rig.lookup(tokens, lease_ms=lease_ms))
        if not located.lease:
            assert (located.slot < 0).all()
            return multiple()
        held = Held(keys_of(tokens), located, self.check(tokens, located), located.lease_until_ms)
        self.held.append(held)
        return held

    @rule(held=leases, pin=st.sampled_from([-1, 0, 1]), lease_ms=st.integers(0, 3_000))
    def change_lease(self, held: Held, pin: int, lease_ms: int) -> None:
        answer = self.run(self.rig.ask(Lease(np.array([held.located.lease], np.uint64), lease_ms, pin)))
        until = int(answer.until_ms[0])
        if held.until_ms <= self.rig.now_ms:
            assert until == 0
        held.until_ms = until

    @rule(tokens=histories)
    def remove(self, tokens: list[int]) -> None:
        keys = keys_of(tokens)
        self.run(self.rig.ask(Remove(keys)))
        assert (self.run(self.rig.lookup(tokens)).slot < 0).all()
        gone = {key.tobytes() for key in keys}
        for mine in self.session_keys.values():
            mine -= gone

    @rule(session=sessions, tokens=histories)
    def append(self, session: int, tokens: list[int]) -> None:
        """Any history, edited or longer: continued where it may be, else refused and nothing changed."""
        before = self.tails.get(session)
        expected = before[2] if before is not None else 0
        self.fill = (self.fill + 1) % 256
        try:
            answer = self.run(self.rig.append(session, tokens, self.fill, expected))
        except (PoolExhausted, TailConflict, SessionUnknown) as error:
            self.refused(session, tokens, error)
            return
        self.used_ms[session] = self.rig.now_ms
        if len(tokens) % TOKENS == 0:
            gone = keys_of(tokens)[-1:]
            self.run(self.rig.ask(Remove(gone)))  # its bytes are not those of `fill_of`
            for mine in self.session_keys.values():
                mine.discard(gone.tobytes())
            if (
                before is not None
                and before[0] == tuple(tokens[: len(before[0])])
                and self.same_block(before[0], tokens)
            ):
                del self.tails[session]
            return
        fill = before[1] if answer.existed[0] and before is not None else self.fill
        if before is not None and not self.same_block(before[0], tokens):
            self.run(self.rig.ask(Remove(tail_keys(*self.tail_of(before[0], session)))))
        self.tails[session] = (tuple(tokens), fill, int(answer.clock[0]))

    def refused(self, session: int, tokens: list[int], error: StoreError) -> None:
        if isinstance(error, SessionUnknown):
            assert not self.lives(session)
            return
        self.used_ms[session] = self.rig.now_ms
        before = self.tails.get(session)
        if isinstance(error, TailConflict):
            assert before is not None
            continues = before[0] == tuple(tokens[: len(before[0])]) and self.same_block(before[0], tokens)
            assert not continues

    @staticmethod
    def tail_of(tokens: tuple[int, ...], session: int) -> tuple[list[int], int]:
        return list(tokens[: len(tokens) // TOKENS * TOKENS]), session

    @staticmethod
    def same_block(one: tuple[int, ...], other: list[int]) -> bool:
        return (len(one) - 1) // TOKENS == (len(other) - 1) // TOKENS

    @rule(session=sessions, tokens=histories)
    def match(self, session: int, tokens: list[int]) -> None:
        """A tail agrees with exactly the tokens that are the same in the same place behind the same blocks."""
        if len(tokens) % TOKENS == 0:
            return
        matched = self.run(self.rig.match(session, tokens))
        mine = self.tails.get(session)
        cut = len(tokens) // TOKENS * TOKENS
        agree = 0
        if self.lives(session):
            self.used_ms[session] = self.rig.now_ms
            if mine is not None and len(mine[0]) // TOKENS * TOKENS == cut and list(mine[0][:cut]) == tokens[:cut]:
                pairs = zip(mine[0][cut:], tokens[cut:], strict=False)
                agree = next((row for row, (a, b) in enumerate(pairs) if a != b), min(len(mine[0]), len(tokens)) - cut)
        assert matched.agree == agree
        if agree:
            assert mine is not None
            assert self.rig.read(tail_keys(tokens[:cut], session), matched.located) == [mine[1]]

    @rule(passed=st.integers(1, 3_000), sweep=st.booleans())
    def wait(self, passed: int, sweep: bool) -> None:
        self.rig.now_ms += passed
        if sweep:
            self.rig.shard.sweep(self.rig.now_ms)

    # --- what always holds ------------------------------------------------------------------------------------------

    @invariant()
    def leased_and_pinned_blocks_stay(self) -> None:
        for held in self.held:
            if held.until_ms == PINNED_MS or held.until_ms > self.rig.now_ms:
                assert self.rig.read(held.keys, held.located) == held.fills

    @invariant()
    def what_a_live_session_holds_is_there(self) -> None:
        pool = self.rig.shard.pool
        for session in list(self.session_keys):
            if not self.lives(session):
                continue
            keys = self.session_keys[session]
            if keys:
                assert (pool.find(np.frombuffer(b"".join(keys), np.uint64).reshape(-1, 4)) >= 0).all()
            if session in self.tails:
                tokens, fill, clock = self.tails[session]
                key = tail_keys(*self.tail_of(tokens, session))
                slots = pool.find(key)
                assert slots[0] >= 0
                assert (int(pool.clocks(slots)[0]), int(pool.arena.data[slots[0], 0])) == (clock, fill)

    @invariant()
    def every_slot_is_in_one_state_and_the_counts_add_up(self) -> None:
        pool = self.rig.shard.pool
        states = np.bincount(pool.states(self.rig.now_ms), minlength=len(State))
        assert states.sum() == BLOCKS
        assert states[State.RESERVED] == 0, "nothing is half published"
        assert states[State.FREE] == pool.free == pool.free_runs()[1].sum()
        published = int((pool.fill() >= 0).sum())
        assert published == len(pool.index)
        resting = BLOCKS - pool.free - published
        assert resting <= states[State.LEASED]
        assert sum(figures.blocks for figures in self.rig.shard.session_figures()) <= published
        assert self.rig.shard.credits.in_flight == 0


TestShard = ShardMachine.TestCase
TestShard.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
