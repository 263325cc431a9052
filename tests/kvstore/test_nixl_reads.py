"""Reads that whoever asks posts himself: the right bytes, one thread in the agent at a time, and an end for each."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kvstore.bench.far import LANES
from kvstore.bench.far import only as lane
from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.errors import BadRequest
from kvstore.transport.nixl import peer
from kvstore.transport.nixl.agent import Agent, Disconnected, Transfer, own_name, spans
from kvstore.transport.nixl.owner import Moved, Owner
from kvstore.transport.nixl.reads import Pending, Reads
from kvstore.transport.nixl.regions import Region, Regions
from tests.kvstore.nixl_rig import NEEDS_NIXL, until
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys

pytestmark = NEEDS_NIXL
SLOTS, SLOT = 64, 4096


class Pair:
    """Memory that one agent offers, and a second agent that reads it, in this process."""

    def __init__(self) -> None:
        self.pool = np.random.default_rng(0).integers(0, 256, (SLOTS, SLOT), np.uint8)
        self.base = int(self.pool.ctypes.data)
        self.serves, self.owner = Owner("pool", serves=True), Owner("reader", serves=False)
        self.serves.call(lambda agent: agent.register(self.base, self.pool.nbytes))
        self.known_as = self.meet()
        self.regions = Regions(self.owner, SLOT)
        self.region: Region = self.regions.make(SLOTS)
        self.room = self.region.array()
        self.owner.call(lambda agent: self._until_over(agent))  # the way there is made by the first read

    def meet(self) -> str:
        known_as = own_name(self.serves.name)
        self.owner.meet(self.serves.name, known_as, self.serves.call(lambda agent: agent.metadata)).result()
        return known_as

    def _until_over(self, agent: Agent) -> None:
        transfer = self.make(0, 0)(agent)
        agent.post(transfer)
        while not agent.over(transfer):
            time.sleep(0.001)

    def make(self, slot: int, to: int) -> Any:
        """A read of one slot into slot `to` of the region."""
        rows = [spans(base, np.array([at]), 1, SLOT) for base, at in ((self.region.base, to), (self.base, slot))]

        known_as = self.known_as

        def make(agent: Agent) -> Transfer:
            return agent.make(known_as, *rows)

        return make

    def read_here(self, slot: int, to: int, seconds: float, later: Any) -> Moved | bool:
        """`Owner.read_here`, as soon as the agent is free."""
        end = time.monotonic() + 10
        while True:
            found = self.owner.read_here(self.make(slot, to), seconds, later)
            if found is not False or time.monotonic() > end:
                return found

    def ended(self, said: list[Any]) -> None:
        """Look after reads until so many have been heard of."""
        end = time.monotonic() + 10
        while not said and time.monotonic() < end:
            self.owner.look(0.001)
        assert len(said) == 1


@pytest.fixture(scope="module", params=list(LANES))
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with lane(request.param):
        made = Pair()
    yield made
    made.owner.close()
    made.serves.close()


def test_a_read_of_two_requests_is_one_read(pair: Pair) -> None:
    def make(agent: Agent) -> Transfer:
        return pair.make(7, 0)(agent).and_with(pair.make(9, 3)(agent))

    pair.room[:] = 0
    said: list[Any] = []
    moved: Any = False
    while moved is False:
        moved = pair.owner.read_here(make, 10.0, lambda: said.append)
    assert isinstance(moved, Moved)
    assert (moved.descriptors, moved.size) == (2, 2 * SLOT)
    assert (pair.room[[0, 3]] == pair.pool[[7, 9]]).all()
    assert not pair.room[[1, 2, 4]].any()


class Scripted:
    """NIXL's agent, as far as requests go: `ends` has what it says of each handle when asked, the last for good."""

    def __init__(self, ends: dict[int, list[str]], refuses: int = 0) -> None:
        self.ends, self.refuses = ends, refuses
        self.posted: list[int] = []
        self.released: list[int] = []

    def postXferReq(self, handle: int, _notice: str) -> None:  # noqa: N802 - NIXL's name
        if handle == self.refuses:
            raise RuntimeError("refused")
        self.posted.append(handle)

    def getXferStatus(self, handle: int) -> str:  # noqa: N802 - NIXL's name
        assert handle in self.posted
        assert handle not in self.released
        said = self.ends[handle]
        return said.pop(0) if len(said) > 1 else said[0]

    def releaseXferReq(self, handle: int) -> None:  # noqa: N802 - NIXL's name
        assert handle not in self.released
        self.released.append(handle)


def scripted(ends: dict[int, list[str]], refuses: int = 0) -> tuple[Agent, Scripted, Transfer]:
    agent, said = Agent.__new__(Agent), Scripted(ends, refuses)
    agent._agent, agent._in_progress, agent._success = said, "going", "done"
    return agent, said, Transfer(1, "peer", 1, 100).and_with(Transfer(2, "peer", 2, 200))


def test_two_requests_are_over_when_both_are() -> None:
    for ends in ({1: ["done"], 2: ["going", "going", "done"]}, {1: ["going", "going", "done"], 2: ["done"]}):
        agent, said, read = scripted(ends)
        agent.post(read)
        assert said.posted == [1, 2]
        assert [agent.over(read) for _ in range(4)] == [False, False, True, True]
        assert sorted(said.released) == [1, 2]


@pytest.mark.parametrize("bad", [1, 2])
def test_two_requests_of_which_one_fails_are_over_when_the_other_is(bad: int) -> None:
    """Until then memory belongs to it."""
    agent, said, read = scripted({bad: ["broken"], 3 - bad: ["going", "going", "done"]})
    agent.post(read)
    assert [agent.over(read) for _ in range(2)] == [False, False]
    for _ in range(2):
        with pytest.raises(Disconnected, match="broken"):
            agent.over(read)
    assert sorted(said.released) == [1, 2]


def test_a_second_request_that_cannot_be_posted_leaves_the_first_looked_after() -> None:
    agent, said, read = scripted({1: ["going", "done"]}, refuses=2)
    agent.post(read)
    assert not agent.over(read)
    with pytest.raises(Disconnected, match="refused"):
        agent.over(read)
    assert sorted(said.released) == [1, 2]


def test_a_first_request_that_cannot_be_posted_is_all() -> None:
    agent, said, read = scripted({}, refuses=1)
    with pytest.raises(Disconnected, match="refused"):
        agent.post(read)
    assert not said.posted
    assert sorted(said.released) == [1, 2]


def outcome(found: Moved | Pending) -> Moved:
    return found if isinstance(found, Moved) else found.future.result(10)


def never() -> Any:
    raise AssertionError("it has ended: nobody is to hear of it later")


def test_a_read_that_ends_in_time_is_told_at_once(pair: Pair) -> None:
    for slot in range(SLOTS):
        moved = pair.read_here(slot, 63 - slot, 10.0, never)
        assert isinstance(moved, Moved)
        assert (moved.descriptors, moved.size) == (1, SLOT)
        assert 0 < moved.seconds < 10
    assert (pair.room[::-1] == pair.pool).all()
    assert pair.owner.under_way == 0


def test_a_read_that_does_not_is_heard_of_later(pair: Pair) -> None:
    """However little time there was: the caller looks after it, or the agent's thread does."""
    for slot, goes_on in ((1, lambda: None), (2, pair.owner.wake)):
        said: list[Any] = []
        moved = pair.read_here(slot, slot, -1.0, lambda said=said: said.append)
        if moved is True:
            goes_on()
            pair.ended(said)
            moved = said[0]
        assert isinstance(moved, Moved)
        assert (pair.room[slot] == pair.pool[slot]).all()
        assert pair.owner.under_way == 0


def test_nothing_is_posted_while_the_agent_is_in_use(pair: Pair) -> None:
    inside, go = threading.Event(), threading.Event()

    def hold(agent: Agent) -> None:
        inside.set()
        assert go.wait(10)

    pair.room[5] = 7
    held = pair.owner.submit(hold)
    assert inside.wait(10)
    assert pair.owner.read_here(pair.make(5, 5), 1.0, never) is False
    go.set()
    held.result(10)
    assert (pair.room[5] == 7).all()
    assert isinstance(pair.read_here(5, 5, 10.0, never), Moved)
    assert (pair.room[5] == pair.pool[5]).all()


@pytest.mark.parametrize("where", ["post", "over"])
def test_who_is_cut_short_leaves_a_read_that_is_looked_after(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Ctrl-C just after NIXL was told, or just before it is asked: the memory is not its caller's before its end."""
    real = getattr(Agent, where)
    left = 1

    def cut_short(self: Agent, transfer: Transfer) -> Any:
        nonlocal left
        cut = left and threading.current_thread() is threading.main_thread()
        found = None if cut and where == "over" else real(self, transfer)
        if cut:
            left = 0
            raise KeyboardInterrupt
        return found

    reads, heard = Reads(pair.owner), threading.Event()
    pair.read_here(8, 8, 10.0, never)  # the agent's thread has nothing to do now
    with monkeypatch.context() as patched:
        patched.setattr(Agent, where, cut_short)
        with pytest.raises(KeyboardInterrupt):
            reads.post(pair.make(9, 9), pair.region, heard.set, SLOT)
        assert not heard.is_set()
        assert (pair.region.busy, pair.region.given_up, pair.owner.under_way) == (1, 1, 1)
        pair.owner.wake()
        assert heard.wait(10)
    assert (pair.region.busy, pair.region.given_up, pair.owner.under_way) == (0, 0, 0)
    assert (pair.room[9] == pair.pool[9]).all()
    again = reads.post(pair.make(10, 10), pair.region, lambda: None, SLOT)
    pair.owner.wake()
    outcome(again)
    assert (pair.room[10] == pair.pool[10]).all()


def test_a_peer_that_is_not_known_is_an_end_and_no_read(pair: Pair) -> None:
    def make(agent: Agent) -> Transfer:
        rows = spans(pair.region.base, np.array([0]), 1, SLOT)
        return agent.make("nobody", rows, rows)

    released = []
    for size in (SLOT, 1 << 40):  # here, and by the agent's thread
        reads = Reads(pair.owner)
        with pytest.raises(Disconnected):
            outcome(reads.post(make, pair.region, lambda: released.append(True), size))
    assert released == [True, True]
    assert (pair.region.busy, pair.owner.under_way) == (0, 0)


def test_a_meeting_that_failed_half_way_does_not_keep_the_peer_out(pair: Pair) -> None:
    """As where the link goes down in it: NIXL keeps that connection, and lets nobody in under its name again."""
    metadata = pair.serves.call(lambda agent: agent.metadata)
    for _ in range(2):
        with pytest.raises(BadRequest, match="not the metadata"):
            pair.owner.meet(pair.serves.name, own_name(pair.serves.name), metadata[:-40]).result()
    pair.known_as = pair.meet()
    assert isinstance(pair.read_here(4, 4, 10.0, never), Moved)
    assert (pair.room[4] == pair.pool[4]).all()


def test_each_meeting_has_a_connection_of_its_own(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes back while a read of before has not ended neither waits for it nor loses anything by its end."""
    old, before, over = pair.known_as, pair.make(1, 1), Agent.over
    heard = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(Agent, "over", lambda self, read: read.peer != old and over(self, read))
        pair.owner.read(before, lambda said: heard.set())
        pair.owner.forget(old)
        pair.known_as = pair.meet()
        assert isinstance(pair.read_here(2, 2, 10.0, never), Moved)
        assert (pair.room[2] == pair.pool[2]).all()
        assert pair.owner.under_way == 1
    assert heard.wait(10)
    pair.owner.call(lambda agent: None)  # what it does at the end of a read is done
    with pytest.raises(BadRequest, match="not known"):
        pair.owner.call(before)
    assert isinstance(pair.read_here(3, 3, 10.0, never), Moved)
    assert (pair.room[3] == pair.pool[3]).all()


def test_threads_take_turns_in_the_agent(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four threads and the agent's own: never two of them in NIXL at once, and everyone gets his bytes."""
    inside, met, lock = 0, [], threading.Lock()

    def alone(name: str) -> Any:
        real = getattr(Agent, name)

        def call(self: Agent, *args: Any) -> Any:
            nonlocal inside
            if self.name != pair.owner.name:
                return real(self, *args)
            with lock:
                inside += 1
                met.append(inside)
            try:
                return real(self, *args)
            finally:
                with lock:
                    inside -= 1

        return call

    for name in ("make", "post", "over", "progress"):
        monkeypatch.setattr(Agent, name, alone(name))
    reads, wrong = Reads(pair.owner), []

    def run(first: int) -> None:
        for turn in range(60):
            slot, to = (first * 7 + turn) % SLOTS, first * 16 + turn % 16
            # every third is too large to be posted by whoever asks
            found = reads.post(pair.make(slot, to), pair.region, lambda: None, SLOT if turn % 3 else 1 << 40)
            pair.owner.wake()
            outcome(found)
            if not (pair.room[to] == pair.pool[slot]).all():
                wrong.append((first, turn))

    threads = [threading.Thread(target=run, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong
    assert max(met) == 1
    assert pair.owner.under_way == 0


def test_a_slow_lane_is_left_to_the_agents_thread() -> None:
    """What a lane takes a byte is learned from its reads; one that stood still for a while counts for little."""
    reads = Reads(None)  # type: ignore[arg-type]  # it is not asked
    mebibyte = 1 << 20
    assert [reads.here(n * mebibyte) for n in (1, 4)] == [True, False]
    for _ in range(40):
        reads.learned(Moved(1, mebibyte, 0.25e-9 * mebibyte))
    assert [reads.here(n * mebibyte) for n in (4, 16)] == [True, False]
    reads.learned(Moved(1, mebibyte, 5.0))
    assert reads.here(4 * mebibyte)
    for _ in range(40):  # it is the post that takes the time: whoever asks does nothing else, and so for longer
        reads.learned(Moved(1, mebibyte, 0.25e-9 * mebibyte, 0.24e-9 * mebibyte))
    assert [reads.here(n * mebibyte) for n in (16, 64)] == [True, False]
    for _ in range(40):
        reads.learned(Moved(1, mebibyte, 4e-9 * mebibyte))
        reads.learned(Moved(1, 64, 1.0))  # a few bytes tell nothing
    assert [reads.here(size) for size in (mebibyte // 4, mebibyte)] == [True, False]


# --- a client -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=list(LANES))
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with lane(request.param), LocalCluster(1, LAYOUT, 128, nixl=True) as running:
        yield running


async def test_gets_side_by_side_and_a_loop_that_goes_on(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = some_keys(64, seed=1)
    data = blocks_for(keys)
    async with await Client.connect(cluster.targets, LAYOUT, transport="nixl", deadline_ms=30_000) as client:
        await client.put(keys, data)
        at = await client.lookup(keys, lease_ms=60_000)
        parts = [np.arange(first, first + n) for first, n in ((0, 1), (1, 1), (2, 30), (32, 32), (63, 1), (0, 64))]
        room, ends = client.buffer(sum(map(len, parts))), np.cumsum([len(rows) for rows in parts])
        outs = [room[end - len(rows) : end] for rows, end in zip(parts, ends.tolist(), strict=True)]

        async def again_and_again(rows: np.ndarray, out: np.ndarray, step: int) -> None:
            for turn in range(30):
                out[:] = 0
                order = rows[:: step if turn % 2 else 1]
                got = await client.get(at.rows(order), out[: len(order)], verify=bool(turn % 3))
                assert (got.data == data[order]).all()

        together = zip(parts, outs, (-1, 3) * 3, strict=True)
        await asyncio.gather(*(again_and_again(*one) for one in together))
        owner: Any = client._transport._nixl._agents.reads  # type: ignore[union-attr]
        await until(lambda: owner.under_way == 0, "every read has ended")

        turns = 0

        async def turn_by_turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(turn_by_turn())
        monkeypatch.setattr(peer, "TURN_S", 0.0)  # else every so many gets, where each is done at once
        for _ in range(20):
            await client.get(at.rows(parts[0]), outs[0])
        assert turns >= 20
        other.cancel()
