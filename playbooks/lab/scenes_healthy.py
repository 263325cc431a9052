"""Scenarios with nothing to act on, though some look as if."""

from __future__ import annotations

from .config import EngineConfig
from .fleet import Pod
from .scenarios import Cast, Stage, Truth, scenario
from .scheduler import Engine
from .workload import Lengths, Mixed, PromptFamily, SharedPrefixes, Stream, Turns, Unique

CAPACITY = ("kv-capacity-exhausted", "preemption-thrash", "pool-leak", "internal-fragmentation")
PREFIX = ("prefix-key-unstable", "prefix-capacity-miss")
OTHERS = ("stuck-transfer", "engine-crash", "traffic-surge", "source-blind")
ALL_CAUSES = (*CAPACITY, *PREFIX, *OTHERS)


def healthy(why: str, onset_s: float | None = None) -> Truth:
    return Truth("healthy", onset_s=onset_s, must_not=ALL_CAUSES, why=why)


def chat_family(cast: Cast, scale: float = 1.0) -> SharedPrefixes:
    """Assistants with a few system prompts of about a thousand tokens."""
    rng = cast.rng
    return SharedPrefixes(
        rng,
        rng.randint(3, 9),
        Lengths(rng.uniform(600, 1500) * scale, 0.3, 64),
        Lengths(rng.uniform(180, 420) * scale, 0.7),
        skew=rng.uniform(0.7, 1.2),
    )


def roomy(cast: Cast) -> EngineConfig:
    """An engine whose pool is far larger than the load needs."""
    return EngineConfig(num_blocks=cast.rng.randrange(16_000, 36_000, 8), cost=cast.cost)


def chat_load(cast: Cast, pods: list[Pod], family: PromptFamily, rate: float) -> None:
    """The same chat traffic on every pod."""
    rng = cast.rng
    output = Lengths(rng.uniform(140, 300), rng.uniform(0.5, 0.8), 2, 1800)
    turns = Turns(0.45, Lengths(14, 0.6, 2, 90), Lengths(90, 0.6)) if rng.random() < 0.5 else None
    for pod in pods:
        cast.load(
            pod,
            Stream(
                rate * rng.uniform(0.92, 1.08), family, output, cast.stream_rng(pod), impatient=0.01, turns=turns,
                max_tokens=rng.choice((1024, 2048)),
            ),
        )  # fmt: skip


def plain(cast: Cast, count: int = 2) -> list[Pod]:
    """Healthy pods under a light chat load."""
    config = roomy(cast)
    pods = cast.pods(*[config] * count)
    chat_load(cast, pods, chat_family(cast), cast.rng.uniform(1.2, 2.8))
    return pods


@scenario("healthy-steady")
def steady(cast: Cast) -> Stage:
    return Stage(cast.fleet(plain(cast)), healthy("A light, steady chat load with good prefix hits."))


@scenario("healthy-busy")
def busy(cast: Cast) -> Stage:
    """The pool is about 80 % used; the batch limit, not the pool, makes an odd request wait a moment."""
    rng = cast.rng
    seqs = rng.randint(80, 110)
    prompt, output = rng.uniform(420, 640), rng.uniform(380, 520)
    blocks = seqs * (prompt + 0.62 * output + 16) / 16
    config = EngineConfig(num_blocks=int(blocks / 0.8), max_num_seqs=int(seqs * 1.12), cost=cast.cost)
    pods = cast.pods(config, config)
    cost = cast.cost
    seconds = output * (cost.base + seqs * (cost.decode + 700 * cost.context)) + seqs * prompt * cost.prefill
    family = Mixed((0.75, Unique(Lengths(prompt, 0.3))), (0.25, SharedPrefixes(rng, 3, Lengths(300), Lengths(250))))
    for pod in pods:
        stream = Stream(seqs / seconds, family, Lengths(output, 0.3, 8, 1500), cast.stream_rng(pod), max_tokens=1500)
        stream.evenness = 3.0
        cast.load(pod, stream)
    return Stage(cast.fleet(pods, 75.0), healthy("The pool is four fifths used, and that is all: an odd short queue."))


@scenario("healthy-idle")
def idle(cast: Cast) -> Stage:
    """Nobody asks anything."""
    pods = plain(cast)
    fleet = cast.fleet(pods)
    for pod in pods:
        for stream in pod.streams:
            stream.turns = None
            fleet.events.at(-30.0, lambda now, s=stream: s.set_scale(0.0, now))  # type: ignore[misc]
    return Stage(fleet, healthy("No traffic at all: idle is not stalled."))


@scenario("healthy-warmup")
def warmup(cast: Cast) -> Stage:
    """One engine starts with the window: cold cache, first steps slow."""
    pods = plain(cast)
    young = cast.rng.choice(pods)
    young.uptime = 0.0

    def slow_first(engine: Engine) -> None:
        engine.step_factor = 3.5
        for seconds, factor in ((8, 2.2), (20, 1.4), (40, 1.0)):
            engine.timers.at(engine.now + seconds, lambda _now, f=factor: setattr(engine, "step_factor", f))  # type: ignore[misc]

    young.on_start = slow_first
    return Stage(cast.fleet(pods), healthy("An engine that has just started warms up."))


@scenario("healthy-rolling-restart")
def rolling_restart(cast: Cast) -> Stage:
    """Both pods are drained and restarted in turn; the other one takes the load meanwhile."""
    pods = plain(cast)
    fleet = cast.fleet(pods)
    start = cast.onset
    for index, pod in enumerate(pods):
        peer = pods[1 - index]
        away = cast.rng.uniform(12, 22)

        def drain(now: float, pod: Pod = pod, peer: Pod = peer) -> None:
            for stream in pod.streams:
                stream.set_scale(0.0, now)
            for stream in peer.streams:
                stream.set_scale(2.0, now)

        def back(now: float, pod: Pod = pod, peer: Pod = peer) -> None:
            pod.start(now)
            for stream in (*pod.streams, *peer.streams):
                stream.set_scale(1.0, now)

        fleet.events.at(start - 12, drain)
        fleet.events.at(start, lambda now, pod=pod: pod.stop(now))  # type: ignore[misc]
        fleet.events.at(start + away, back)
        start += away + cast.rng.uniform(35, 60)
    return Stage(fleet, healthy("A roll-out: each pod drained, restarted and warm again within a minute.", cast.onset))


@scenario("healthy-long-documents")
def long_documents(cast: Cast) -> Stage:
    """From the onset on a few 60k-token documents join the chats."""
    rng = cast.rng
    config = EngineConfig(num_blocks=rng.randrange(26_000, 40_000, 8), cost=cast.cost)
    pods = cast.pods(config, config)
    chat_load(cast, pods, chat_family(cast), rng.uniform(1.2, 2.2))
    fleet = cast.fleet(pods)
    for pod in pods:
        documents = Stream(
            rng.uniform(0.04, 0.06), Unique(Lengths(60_000, 0.12)), Lengths(420, 0.3), cast.stream_rng(pod, "doc")
        )
        documents.scale = 0.0
        cast.load(pod, documents)
        fleet.events.at(cast.onset, lambda now, s=documents: s.set_scale(1.0, now))  # type: ignore[misc]
    return Stage(fleet, healthy("Long prompts take long to compute, in proportion to their length.", cast.onset))


@scenario("healthy-unique-prompts")
def unique_prompts(cast: Cast) -> Stage:
    """Batch work on texts that have nothing in common: no hit is possible, and none is missed."""
    config = roomy(cast)
    pods = cast.pods(config, config)
    chat_load(cast, pods, Unique(Lengths(cast.rng.uniform(600, 1400), 0.5)), cast.rng.uniform(1.8, 3.2))
    for pod in pods:
        for stream in pod.streams:
            stream.turns = None
    return Stage(cast.fleet(pods), healthy("Prompts are unique: a hit ratio near zero is what they allow."))


@scenario("healthy-load-doubles-within-capacity")
def load_doubles(cast: Cast) -> Stage:
    """Twice the traffic from the onset on, with room for it."""
    pods = plain(cast)
    fleet = cast.fleet(pods)
    factor = cast.rng.uniform(1.8, 2.2)
    for pod in pods:
        for stream in pod.streams:
            fleet.events.at(cast.onset, lambda now, s=stream: s.set_scale(factor, now))  # type: ignore[misc]
    return Stage(fleet, healthy("Traffic doubles within the capacity; latencies hardly move.", cast.onset))
