"""A simulated store of several shards under load, scraped as a Prometheus would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random

from .exposition import Family, LabelPairs
from .fleet import Pod
from .hardware import Node
from .recorder import Recorder
from .store_load import Clients, Conversation, SessionClass
from .store_pages import Peer, shard_families
from .store_shard import HEARTBEAT_S, StoreShard

Happening = Callable[[float], float | None]
"""Called at its time; answers with the seconds until it happens again (None: never)."""
MISSED = 3
"""Heartbeats without an answer after which a shard takes a peer for down."""


@dataclass
class StoreFleet:
    """Times are seconds from the first scrape; before it the store runs for ``warm_s``.

    ``events`` are (time, what happens); ``hot`` is (key, tokens, lookups a second) of a chain that everybody wants.
    """

    epoch: int
    model: str
    shards: Sequence[StoreShard]
    clients: Clients
    node: Node
    warm_s: float = 120.0
    age_s: float = 20_000.0
    events: list[tuple[float, Happening]] = field(default_factory=list)
    hot: tuple[str, int, float] | None = None
    miss: float = 0.0
    pods: tuple[Pod, ...] = ()

    def record(self, seconds: float, interval_s: float) -> Recorder:
        """Run, and scrape every shard at 0, ``interval_s``, … ``seconds``."""
        recorder = Recorder()
        steps = self._run(-self.warm_s, seconds)
        rng = Random(f"{self.epoch}/scrape")
        for index in range(round(seconds / interval_s) + 1):
            now = index * interval_s
            for when in steps:
                if when > now:
                    break
            self._scrape(recorder, now, interval_s, rng)
        return recorder

    def _run(self, start: float, end: float) -> Iterator[float]:
        """Everything that happens, in order; yields the time of each."""
        order = count()
        queue: list[tuple[float, int, Happening]] = []

        def at(when: float, what: Happening) -> None:
            heappush(queue, (when, next(order), what))

        for shard in self.shards:
            shard.start(start - self.age_s if self.age_s else start)
        for kind in self.clients.classes:
            at(start + self.clients.gap(kind, start), self._arrivals(kind, at))
        at(start, self._every(1.0, self.clients.sweep))
        if self.hot is not None:
            at(start, self._hot_lookups())
        for when, what in self.events:
            at(when, what)
        while queue and queue[0][0] <= end:
            when, _number, what = heappop(queue)
            yield when
            after = what(when)
            if after is not None:
                at(when + after, what)
        yield float("inf")

    def _arrivals(self, kind: SessionClass, at: Callable[[float, Happening], None]) -> Happening:
        def arrive(now: float) -> float:
            if kind.rate * kind.scale > 0:
                at(now, self._turns(self.clients.begin(kind)))
            return self.clients.gap(kind, now)

        return arrive

    def _turns(self, conversation: Conversation) -> Happening:
        return lambda now: self.clients.turn(conversation, now)

    def _every(self, seconds: float, what: Callable[[float], None]) -> Callable[[float], float]:
        def again(now: float) -> float:
            what(now)
            return seconds

        return again

    def _hot_lookups(self) -> Callable[[float], float]:
        def ask(now: float) -> float:
            assert self.hot is not None
            key, tokens, rate = self.hot
            if rate <= 0:
                return 1.0
            shard = self.clients.placed(key)
            if shard.serves and key not in shard.lookup([(key, tokens)], now):
                shard.put(key, tokens, None, now)
            return self.clients.rng.expovariate(rate)

        return ask

    def _scrape(self, recorder: Recorder, now: float, seconds: float, rng: Random) -> None:
        time_ms = round((self.epoch + now) * 1000)
        for shard in self.shards:
            target: LabelPairs = (("instance", shard.instance), ("job", "kvstore"))
            answers = shard.serves and not shard.trouble.page_gone and rng.random() >= self.miss
            recorder.add([Family("up", "gauge", "Scrape.").one(float(answers))], time_ms, target)
            if answers:
                shard.cpu += 0.004 * seconds
                page = shard_families(shard, self.model, now, float(self.epoch), self._seen_by(shard, now, rng))
                recorder.add(page, time_ms, target)
        self.node.observe(seconds, 0.0)
        host: LabelPairs = (("instance", f"{self.node.name}:9100"), ("job", "node"))
        recorder.add([Family("up", "gauge", "Scrape.").one(1.0), *self.node.families()], time_ms, host)

    def _seen_by(self, shard: StoreShard, now: float, rng: Random) -> dict[str, Peer]:
        found: dict[str, Peer] = {}
        for other in self.shards:
            if other is shard:
                continue
            trouble = other.trouble
            since = trouble.stopped_at if trouble.stopped_at is not None else trouble.dead_at
            age = rng.uniform(0.02, HEARTBEAT_S + 0.05) + (0.0 if since is None else max(0.0, now - since))
            pending = int(rng.random() < 0.01)
            if trouble.stopped_at is not None:
                pending = 1 + int(rng.random() < 0.5)
            found[other.name] = Peer(age, pending, up=age < MISSED * HEARTBEAT_S)
        return found
