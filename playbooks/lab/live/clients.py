"""The process of the lab's clients: conversations that come, use the store, think, and go.

python -m playbooks.lab.live.clients CLUSTER_FILE LAYOUT_JSON SEED TRANSPORT < orders > report
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore.client import Client
from kvstore.errors import StoreError
from kvstore.handle import SessionHandle
from kvstore.keys import Chain, Keys, block_keys, root_digest
from kvstore.layout import Layout
from kvstore.messages import Durability
from playbooks.lab.live.load import Hot, Kind, Load, Report
from playbooks.lab.live.traffic import report_text

_LEASE_MS = 2_000
_DEADLINE_MS = 1_500
_KEPT_TIMES = 2_000
_VOCABULARY = 50_000


class Conversation:
    """One user: a chain that grows turn by turn, held by a session."""

    def __init__(self, crowd: Crowd, kind: Kind, rng: Random) -> None:
        self._crowd = crowd
        self._kind = kind
        self._rng = rng
        self._chain = Chain(root_digest(crowd.layout.model_id), crowd.layout.block_tokens)
        self._session: SessionHandle | None = None
        self._partial: Keys | None = None

    async def run(self) -> None:
        kind, rng = self._kind, self._rng
        turns = 1 + round(rng.expovariate(1 / max(kind.turns - 1, 0.01)))
        self._chain.extend(self._opening())
        for turn in range(turns):
            if turn:
                await asyncio.sleep(rng.expovariate(1 / kind.think_s) * 0.5 + kind.think_s * 0.5)
                self._chain.extend(self._words(self._about(kind.turn_tokens)))
            with self._crowd.counted():
                await self._turn()
        if self._session is not None and rng.random() < kind.closes:
            with contextlib.suppress(StoreError):
                await self._session.close()

    async def _turn(self) -> None:
        client, report = self._crowd.client, self._crowd.report
        begun = time.perf_counter()
        number = int(self._session) if self._session else 0
        ttl_ms = round(self._kind.ttl_s * 1000)
        self._session = await client.open_session(self._kind.name, ttl_ms=ttl_ms, number=number, renew=False)
        keys = block_keys(self._chain.digests, 0, 0)
        if len(keys):
            located = await client.lookup(
                keys, lease_ms=_LEASE_MS, session=self._session, prefix=True, deadline_ms=_DEADLINE_MS
            )
            hits = located.prefix
            report.hit_blocks += hits
            report.missed_blocks += len(keys) - hits
            if hits:
                await client.get(located, deadline_ms=_DEADLINE_MS)
                await client.release(located, deadline_ms=_DEADLINE_MS)
            await self._put(keys[hits:])
        await self._put_tail()
        report.turns += 1
        if len(report.turn_seconds) < _KEPT_TIMES:
            report.turn_seconds.append(time.perf_counter() - begun)

    async def _put(self, keys: Keys) -> None:
        """Window by window, as an engine's prefill would bring them."""
        crowd, window = self._crowd, self._crowd.layout.window_blocks
        for first in range(0, len(keys), window):
            part = crowd.ordered(keys[first : first + window])
            await crowd.client.put(
                part,
                crowd.blocks(len(part)),
                session=self._session or 0,
                durability=Durability(crowd.load.durability),
                one_run=self._kind.one_run,
                deadline_ms=_DEADLINE_MS,
            )
            crowd.report.put_blocks += len(part)

    async def _put_tail(self) -> None:
        """What fills no block yet, under its content; the shorter one before it is not needed any more."""
        tokens = self._chain.tail_tokens
        if not tokens:
            return
        crowd = self._crowd
        digest = self._chain.tail_digests()[-1]
        keys = block_keys([digest], 0, 0, first_index=len(self._chain.digests))
        await crowd.client.put(
            keys,
            crowd.blocks(1),
            valid=np.asarray([tokens], np.int64),
            session=self._session or 0,
            durability=Durability(crowd.load.durability),
            deadline_ms=_DEADLINE_MS,
        )
        if self._partial is not None:
            await crowd.client.remove(self._partial, deadline_ms=_DEADLINE_MS)
        self._partial = keys

    def _opening(self) -> list[int]:
        kind, rng = self._kind, self._rng
        shared: list[int] = []
        if kind.prefixes:
            source = Random(f"prefix/{kind.name}/{rng.randrange(kind.prefixes)}")
            shared = [source.randrange(_VOCABULARY) for _ in range(kind.prefix_tokens)]
        return shared + self._words(max(1, self._about(kind.first_tokens) - len(shared)))

    def _words(self, n: int) -> list[int]:
        return [self._rng.randrange(_VOCABULARY) for _ in range(n)]

    def _about(self, mean: float) -> int:
        spread = self._kind.spread
        return max(1, round(self._rng.lognormvariate(math.log(mean) - spread**2 / 2, spread)))


class Crowd:
    """Everybody: arrivals of each kind, the hot chain, orders."""

    def __init__(self, client: Client, layout: Layout, seed: int) -> None:
        self.client = client
        self.layout = layout
        self.load = Load(())
        self.report = Report()
        self._rng = Random(f"crowd/{seed}")
        self._tasks: set[asyncio.Task[None]] = set()
        self._hot: asyncio.Task[None] | None = None
        self._bytes = np.frombuffer(self._rng.randbytes(layout.block_bytes), np.uint8)
        self._held: list[SessionHandle] = []

    def blocks(self, n: int) -> npt.NDArray[np.uint8]:
        """`n` blocks of some bytes."""
        return np.broadcast_to(self._bytes, (n, self.layout.block_bytes)).copy()

    def ordered(self, keys: Keys) -> Keys:
        """A window's keys in the order in which they are put: their own, or none at all (`Load.scattered`)."""
        scattered = self.load.scattered
        if scattered is None or self._rng.random() >= scattered.share:
            return keys
        mine = np.flatnonzero(self.client.shards.home(keys) == scattered.shard)
        order = np.arange(len(keys))
        order[mine] = self._rng.sample(mine.tolist(), len(mine))
        return keys[order]

    @contextlib.contextmanager
    def counted(self) -> Any:
        """A refusal or a fault of the store costs this turn, not the conversation."""
        try:
            yield
        except StoreError as error:
            if error.reason in ("no_space", "no_run"):
                self.report.refused += 1
            else:
                self.report.errors += 1
            self.report.latest_error = str(error)

    async def follow(self, order: dict[str, Any]) -> None:
        """One order of the rig."""
        if "load" in order:
            load = Load.from_json(order["load"])
            if load.hot != self.load.hot:
                self._heat(load.hot)
            self.load = load
        if "scatter" in order:
            await self._scatter(**order["scatter"])

    async def arrive(self) -> None:
        """Conversations begin, for ever: each kind a Poisson stream."""
        due: dict[str, float] = {}
        while True:
            now = time.monotonic()
            for kind in self.load.kinds:
                while due.setdefault(kind.name, now) <= now and kind.arrivals_per_s > 0:
                    due[kind.name] += self._rng.expovariate(kind.arrivals_per_s)
                    self._begin(Conversation(self, kind, Random(self._rng.random())).run())
            await asyncio.sleep(0.05)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _heat(self, hot: Hot | None) -> None:
        if self._hot is not None:
            self._hot.cancel()
        self._hot = asyncio.create_task(self._ask_for(hot)) if hot else None

    async def _ask_for(self, hot: Hot) -> None:
        keys = self._owned(hot.shard, self.layout.window_blocks, "hot")
        with self.counted():
            await self.client.put(keys, self.blocks(len(keys)), deadline_ms=_DEADLINE_MS)
        due = time.monotonic()
        while True:
            with self.counted():
                located = await self.client.lookup(keys, lease_ms=_LEASE_MS, deadline_ms=_DEADLINE_MS)
                await self.client.get(located, deadline_ms=_DEADLINE_MS)
            due = max(due + 1 / hot.per_s, time.monotonic() - 1)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _scatter(self, shard: int, gap: int) -> None:
        """Fill the shard's pool with short-lived blocks, hold every `gap`-th, let the others go."""
        held = await self.client.open_session("pinned-prompts", ttl_ms=3_600_000, renew=False)
        self._held.append(held)
        blocks = int(self.client.shards.links[shard].facts["blocks"])
        fillers: list[Keys] = []
        with self.counted():
            for n in range(blocks // gap):
                keys = self._owned(shard, gap, f"scatter/{n}")
                await self.client.put(keys[1:], self.blocks(gap - 1), deadline_ms=_DEADLINE_MS)
                fillers.append(keys[1:])
                await self.client.put(keys[:1], self.blocks(1), session=held, deadline_ms=_DEADLINE_MS)
        for keys in fillers:
            with self.counted():
                await self.client.remove(keys, deadline_ms=_DEADLINE_MS)

    def _owned(self, shard: int, n: int, name: str) -> Keys:
        """`n` keys that live on this shard."""
        rng = np.random.default_rng(abs(hash_of(f"{name}/{shard}")))
        found = np.zeros((0, 4), np.uint64)
        while len(found) < n:
            keys = rng.integers(1, 2**63, (4 * n + 64, 4)).astype(np.uint64)
            keys[:, 3] &= np.uint64(0xFFFF_FFFF_0000_0000)
            found = np.concatenate([found, keys[self.client.shards.home(keys) == shard]])
        return found[:n]


def hash_of(text: str) -> int:
    """The same in every process."""
    import hashlib

    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


async def serve(cluster: Path, layout: Layout, seed: int, transport: str) -> Report:
    """Follow orders until they end."""
    async with await Client.connect(
        cluster, layout, name="lab", deadline_ms=_DEADLINE_MS * 4, transport=transport
    ) as client:
        crowd = Crowd(client, layout, seed)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        arrivals = asyncio.create_task(crowd.arrive())
        while line := await reader.readline():
            await crowd.follow(json.loads(line))
        arrivals.cancel()
        return crowd.report


def main(argv: list[str]) -> int:
    cluster, layout, seed, transport = argv
    report = asyncio.run(serve(Path(cluster), Layout.from_json(layout), int(seed), transport))
    print(report_text(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
