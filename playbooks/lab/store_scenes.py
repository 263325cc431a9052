"""Healthy scenes of a KV store, and what every store scene is built from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, cast

from .hardware import Node
from .scenarios import Cast, Stage, Truth, scenario
from .store_fleet import StoreFleet
from .store_load import Clients, SessionClass
from .store_shard import StoreConfig, StoreShard
from .workload import Lengths

SHARDS = 4
USUAL = StoreConfig(blocks=16_384)
HEALTHY = Truth("healthy")


def usual_classes(rng: Random, rate: float = 1.0) -> list[SessionClass]:
    """Three kinds of clients; nearly all of them close their sessions."""
    return [
        SessionClass("chat", rate * rng.uniform(0.9, 1.3), closes=0.97),
        SessionClass("agent", rate * rng.uniform(0.5, 0.8), closes=0.98, again=0.8, think=Lengths(6, 0.5, 1, 40),
                     first=Lengths(2200, 0.4, 200, 8000), turn=Lengths(420, 0.5, 32, 2500)),
        SessionClass("batch", rate * rng.uniform(0.4, 0.7), closes=1.0, again=0.3, think=Lengths(4, 0.4, 1, 20),
                     first=Lengths(900, 0.6, 64, 5000), shared=1),
    ]  # fmt: skip


@dataclass
class StoreSet:
    """Four shards and three session classes before the curtain rises; the seed picks a shard and a class."""

    cast: Cast
    config: StoreConfig = USUAL
    rate: float = 1.0

    def __post_init__(self) -> None:
        rng = self.cast.rng
        self.host = f"store-{rng.choice('abcd')}"
        first = rng.choice((9600, 9700, 18_080))
        self.shards = [
            StoreShard(str(i), f"{self.host}:{first + i}", self.config, Random(f"{self.cast.seed}/shard/{i}"))
            for i in range(SHARDS)
        ]
        self.classes = usual_classes(rng, self.rate)
        self.shard = rng.choice(self.shards)
        self.kind = rng.choice(self.classes)
        self.onset = self.cast.onset

    def reconfigure(self, **options: Any) -> None:
        """Change the picked shard's options before it starts."""
        self.shard.config = replace(self.shard.config, **options)

    def stage(self, truth: Truth, seconds: float = 300.0, **fleet: Any) -> Stage:
        rng = Random(f"{self.cast.seed}/clients")
        made = StoreFleet(
            self.cast.epoch, self.cast.model, self.shards, Clients(self.shards, self.classes, rng),
            Node(self.host, Random(f"{self.cast.seed}/host")), **fleet,
        )  # fmt: skip
        return Stage(cast(Any, made), truth, seconds)

    def on_shard(self, cause: str, onset_s: float | None, why: str) -> Truth:
        return Truth(cause, {"shard": self.shard.name, "instance": self.shard.instance}, onset_s, why=why)

    def on_class(self, cause: str, onset_s: float | None, why: str) -> Truth:
        return Truth(cause, {"session_class": self.kind.name}, onset_s, why=why)


@scenario("store-healthy")
def healthy(cast: Cast) -> Stage:
    return StoreSet(cast).stage(HEALTHY)


@scenario("store-healthy-durable")
def durable(cast: Cast) -> Stage:
    return StoreSet(cast, replace(USUAL, durable=True)).stage(HEALTHY)


@scenario("store-healthy-evicting")
def evicting(cast: Cast) -> Stage:
    """A pool full of cached blocks: eviction is its normal state, and what comes back is still there."""
    return StoreSet(cast, replace(USUAL, blocks=12_288)).stage(HEALTHY, warm_s=400.0)


@scenario("store-healthy-cold")
def cold(cast: Cast) -> Stage:
    """Started a few seconds before the first scrape."""
    return StoreSet(cast).stage(HEALTHY, warm_s=6.0, age_s=0.0)


@scenario("store-healthy-idle")
def idle(cast: Cast) -> Stage:
    """It has a past, and nobody asks any more."""
    made = StoreSet(cast)

    def stop(_now: float) -> None:
        for kind in made.classes:
            kind.scale = 0.0

    return made.stage(HEALTHY, events=[(-100.0, stop)])


@scenario("store-healthy-load-doubles")
def doubles(cast: Cast) -> Stage:
    """Twice the arrivals from the onset on, within what the store holds: more sessions, and rightly."""
    made = StoreSet(cast, replace(USUAL, blocks=24_576))

    def more(_now: float) -> None:
        for kind in made.classes:
            kind.scale = 2.0

    return made.stage(HEALTHY, events=[(made.onset, more)])


@scenario("store-healthy-long-ttl")
def long_ttl(cast: Cast) -> Stage:
    """A class that by design leaves its sessions to a long TTL, for users who do come back after a long while."""
    made = StoreSet(cast, replace(USUAL, blocks=24_576))
    made.kind.closes, made.kind.ttl = 0.0, 900.0
    made.kind.think, made.kind.again = Lengths(120, 0.9, 5, 800), 0.6
    made.kind.rate *= 0.5
    return made.stage(HEALTHY, warm_s=1500.0)


@scenario("store-healthy-restart")
def restart(cast: Cast) -> Stage:
    """One shard is restarted on purpose; its pool starts empty."""
    made = StoreSet(cast)

    def down(now: float) -> None:
        made.shard.trouble.dead_at = now

    def up(now: float) -> None:
        made.shard.trouble.dead_at = None
        made.shard.start(now)

    return made.stage(HEALTHY, events=[(made.onset, down), (made.onset + 9.0, up)])
