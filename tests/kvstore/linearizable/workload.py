"""Writers and readers of hot tails, each a process with a client of its own.

Sessions of their own: one writer each, `layers` keys that lie on all shards, one append for all of them. Shared
sessions: one key, several writers that compete for every version. Readers walk over the layers of a tail, as a step of
attention does, asking in each layer for no less than they saw in the one before; or they lease a tail and read it
again.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kvstore.client import Client
from kvstore.errors import DeadlineExceeded, LeaseExpired, PoolExhausted, ShardUnavailable, TailConflict
from kvstore.keys import Keys, block_keys
from kvstore.layout import Layout
from kvstore.locations import Blocks, Locations, State
from kvstore.sync import SyncClient
from tests.kvstore.linearizable.history import UNANSWERED, Kind, Recorder

TOKENS = 16
DEADLINE_MS = 30_000
"""Long: on a crowded host an operation without an answer would only be lost to the check."""
_TAILS = 1 << 20
_PAUSE_S = 0.0005
_AHEAD = 200
"""Operations that writers or readers may be ahead of their share."""


def layout_of(layers: int) -> Layout:
    """1 KiB a block: versions matter here, not bytes."""
    return Layout("linearizable", layers=layers, heads=1, head_dim=16, block_tokens=TOKENS)


@dataclass(frozen=True)
class Plan:
    """What every process knows. `board` is a file of int64: the current tail of each session, then each process's count
    of writes, of reads, and whether it is done."""

    targets: str
    layers: int
    sessions: tuple[int, ...]
    """Numbers (at the store) of the sessions with one writer, then of the shared ones."""
    shared: int
    writers: int
    readers: int
    versions: int
    """New versions that one writer writes."""
    reads_per_write: float
    enforce_need: bool
    directory: Path

    @property
    def processes(self) -> int:
        return self.writers + self.readers

    def rows(self, session: int) -> int:
        """Keys of a session's tail."""
        return self.layers if session < len(self.sessions) - self.shared else 1

    def key_number(self, session: int, tail: int, layer: int) -> int:
        return (session * _TAILS + tail) * 1024 + layer

    def board(self) -> Board:
        return Board(np.memmap(self.directory / "board", np.int64, "r+"), len(self.sessions), self.processes)


class Board:
    """Shared memory between the processes: hints, never part of what is checked."""

    def __init__(self, words: Any, sessions: int, processes: int) -> None:
        self.tails = words[:sessions]
        self.writes = words[sessions : sessions + processes]
        self.reads = words[sessions + processes : sessions + 2 * processes]
        self.done = words[sessions + 2 * processes :]

    @staticmethod
    def size(sessions: int, processes: int) -> int:
        return sessions + 3 * processes


@lru_cache(256)
def digests_of(session: int, tail: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A made-up chain: the digest after each token of a tail, `[TOKENS, 24]`."""
    return np.random.default_rng((session, tail)).integers(0, 256, (TOKENS, 24), np.uint8)


@lru_cache(256)
def tail_keys(session: int, tail: int, rows: int) -> Keys:
    """The keys of a tail, one a layer."""
    place = np.random.default_rng((session, tail, 1)).bytes(24)
    return np.concatenate([block_keys([place], layer, 0, first_index=tail) for layer in range(rows)])


def full_keys(session: int, tail: int, rows: int) -> Keys:
    last = digests_of(session, tail)[-1].tobytes()
    return np.concatenate([block_keys([last], layer, 0, first_index=tail) for layer in range(rows)])


class Writer:
    """One writing process."""

    def __init__(self, plan: Plan, number: int, client: Client) -> None:
        self.plan = plan
        self.number = number
        self.client = client
        self.board = plan.board()
        self.recorder = Recorder(number)
        self.lost = 0
        self.unanswered = 0
        self._values = itertools.count(1)
        self._mine = [s for s in range(len(plan.sessions) - plan.shared) if s % plan.writers == number]
        self._shared = list(range(len(plan.sessions) - plan.shared, len(plan.sessions)))
        self._state = {s: (0, 0, np.zeros(plan.rows(s), np.uint64)) for s in self._mine}

    async def run(self) -> None:
        """Until the plan's number of versions; never far ahead of what the readers can keep up with."""
        for turn in itertools.count():
            if self.board.writes[self.number] >= self.plan.versions:
                return
            while self.plan.reads_per_write * self.board.writes.sum() > self.board.reads.sum() + _AHEAD:
                await asyncio.sleep(_PAUSE_S)
            for session in self._mine:
                await self._next_version(session)
            if self._shared:
                await self._compete(self._shared[turn % len(self._shared)])

    async def _next_version(self, session: int) -> None:
        tail, valid, clocks = self._state[session]
        published = await self._append(session, tail, valid + 1, clocks)
        if published is None or valid + 1 == TOKENS:
            self._state[session] = (tail + 1, 0, np.zeros_like(clocks))
            self.board.tails[session] = tail + 1
        else:
            self._state[session] = (tail, valid + 1, published.clock)

    async def _compete(self, session: int) -> None:
        """Continue what is there now, if nobody is quicker. Only who ended a tail begins the next one."""
        tail = int(self.board.tails[session])
        keys = tail_keys(session, tail, 1)
        begin = time.monotonic_ns()
        blocks = await self.client.get(keys, deadline_ms=DEADLINE_MS)
        end = time.monotonic_ns()
        if not blocks.found[0]:
            return
        clock, valid = int(blocks.clock[0]), int(blocks.valid[0])
        self.recorder.add(
            Kind.READ,
            self.plan.key_number(session, tail, 0),
            begin,
            end,
            clock=clock,
            value=value_of(blocks, 0),
            valid=valid,
        )
        published = await self._append(session, tail, valid + 1, np.array([clock], np.uint64))
        if published is None or published.existed[0]:
            self.lost += 1
        elif valid + 1 == TOKENS:
            await self.begin_tail(session, tail + 1)

    async def begin_tail(self, session: int, tail: int) -> None:
        await self._append(session, tail, 1, np.zeros(1, np.uint64))
        self.board.tails[session] = tail

    async def _append(self, session: int, tail: int, valid: int, expected: Any) -> Any:
        """One new version of every row; what the store answered, None when it refused or did not answer."""
        rows = self.plan.rows(session)
        values = [self.number << 48 | next(self._values) for _ in range(rows)]
        words = self.client.layout.block_bytes // 8
        blocks = np.repeat(np.array(values, np.int64), words).reshape(rows, words).view(np.uint8)
        begin = time.monotonic_ns()
        try:
            published = await self.client.append(
                self.plan.sessions[session],
                tail_keys(session, tail, rows),
                blocks,
                valid=valid,
                digests=digests_of(session, tail)[:valid],
                expected=expected,
                full_keys=full_keys(session, tail, rows) if valid == TOKENS else None,
            )
        except (TailConflict, PoolExhausted):
            return None
        except (DeadlineExceeded, ShardUnavailable):
            self.unanswered += 1
            self._record(session, tail, valid, begin, UNANSWERED, values, None)
            return None
        self._record(session, tail, valid, begin, time.monotonic_ns(), values, published)
        return published

    def _record(
        self, session: int, tail: int, valid: int, begin: int, end: int, values: list[int], published: Any
    ) -> None:
        kind = Kind.END if valid == TOKENS else Kind.WRITE
        for layer, value in enumerate(values):
            if published is not None and published.existed[layer]:
                continue  # somebody else's version
            self.recorder.add(
                kind,
                self.plan.key_number(session, tail, layer),
                begin,
                end,
                clock=0 if published is None else int(published.clock[layer]),
                value=value,
                valid=valid,
                layer=layer,
            )
            self.board.writes[self.number] += kind == Kind.WRITE


class Reader:
    """One reading process."""

    def __init__(self, plan: Plan, number: int, client: SyncClient) -> None:
        self.plan = plan
        self.number = number
        self.client = client
        self.board = plan.board()
        self.recorder = Recorder(number)
        self.unanswered = 0
        self._random = np.random.default_rng(number)
        self._steps = itertools.count()
        self._out = client.buffer(1)

    def run(self) -> None:
        """Until the writers are done, at most `reads_per_write` as many operations as theirs."""
        while not self.board.done[: self.plan.writers].all():
            self.board.reads[self.number] = len(self.recorder)
            if self.board.reads.sum() > self.plan.reads_per_write * self.board.writes.sum() + _AHEAD:
                time.sleep(_PAUSE_S)
                continue
            session = int(self._random.integers(len(self.plan.sessions)))
            tail = int(self.board.tails[session])
            if self._random.random() < 0.02:
                self._leased(session, tail)
            else:
                self._step(session, tail)

    def _step(self, session: int, tail: int) -> None:
        """Layer by layer, in each no less than in the one before."""
        keys = tail_keys(session, tail, self.plan.rows(session))
        home = self.client.client.shards.home(keys).tolist()
        clocks: dict[int, int] = {}
        valid, step = 0, next(self._steps)
        for layer in range(len(keys)):
            number = self.plan.key_number(session, tail, layer)
            begin = time.monotonic_ns()
            blocks = self.client.get(
                keys[layer : layer + 1],
                self._out,
                min_clock=clocks.get(home[layer], 0),
                min_valid=valid,
                deadline_ms=DEADLINE_MS,
            )
            end = time.monotonic_ns()
            if blocks.state[0] == State.OK:
                valid = int(blocks.valid[0])
                clock = clocks[home[layer]] = int(blocks.clock[0])
                self.recorder.add(
                    Kind.READ,
                    number,
                    begin,
                    end,
                    clock=clock,
                    value=value_of(blocks, 0),
                    valid=valid,
                    layer=layer,
                    step=step,
                )
            elif blocks.state[0] == State.ABSENT:
                self.recorder.add(Kind.MISS, number, begin, end, layer=layer)
                return
            else:
                self.unanswered += 1
                return

    def _leased(self, session: int, tail: int) -> None:
        """Lease a tail, then read its places again while its writer goes on."""
        keys = tail_keys(session, tail, self.plan.rows(session))
        begin = time.monotonic_ns()
        located = self.client.lookup(keys, lease_ms=500)
        end = time.monotonic_ns()
        for layer in range(len(keys)):
            number = self.plan.key_number(session, tail, layer)
            if located.slot[layer] < 0:
                self.recorder.add(Kind.MISS, number, begin, end, layer=layer)
                continue
            clock, valid = int(located.clock[layer]), int(located.valid[layer])
            self.recorder.add(Kind.READ, number, begin, end, clock=clock, valid=valid, layer=layer)
        if located.leased:
            self._read_again(session, tail, located)
            self.client.release(located)

    def _read_again(self, session: int, tail: int, located: Locations) -> None:
        for _ in range(3):
            time.sleep(0.001)
            begin = time.monotonic_ns()
            try:
                blocks = self.client.get(located, deadline_ms=DEADLINE_MS)
            except LeaseExpired:
                self.unanswered += 1
                return
            end = time.monotonic_ns()
            for layer in np.flatnonzero(blocks.found).tolist():
                self.recorder.add(
                    Kind.SNAPSHOT,
                    self.plan.key_number(session, tail, layer),
                    begin,
                    end,
                    clock=int(blocks.clock[layer]),
                    value=value_of(blocks, layer),
                    valid=int(blocks.valid[layer]),
                    layer=layer,
                    leased=int(located.clock[layer]),
                )


def value_of(blocks: Blocks, row: int) -> int:
    """What the writer of a block put in every word of it; −1 when the words differ."""
    words = blocks.data[row].view(np.int64)
    return int(words[0]) if (words == words[0]).all() else -1


def write(plan: Plan, number: int) -> None:
    """The whole of a writing process."""
    asyncio.run(_write(plan, number))


async def _write(plan: Plan, number: int) -> None:
    async with await Client.connect(
        plan.targets, layout_of(plan.layers), staging_blocks=256, deadline_ms=DEADLINE_MS
    ) as client:
        writer = Writer(plan, number, client)
        if number == 0:
            for session in writer._shared:
                await writer.begin_tail(session, 0)
        try:
            await writer.run()
        finally:
            writer.board.done[number] = 1
        writer.recorder.save(plan.directory / f"{number}.npy")
        np.save(plan.directory / f"{number}.counts.npy", [writer.lost, writer.unanswered])


def read(plan: Plan, number: int) -> None:
    """The whole of a reading process."""
    client = SyncClient(
        plan.targets,
        layout_of(plan.layers),
        staging_blocks=16,
        enforce_need=plan.enforce_need,
        deadline_ms=DEADLINE_MS,
    )
    with client:
        reader = Reader(plan, number, client)
        reader.run()
        reader.recorder.save(plan.directory / f"{number}.npy")
        np.save(plan.directory / f"{number}.counts.npy", [0, reader.unanswered])
