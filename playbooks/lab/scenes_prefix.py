"""Scenarios about hits that do not come: keys that differ early, and prefixes evicted before they are used again."""

from __future__ import annotations

from .config import EngineConfig
from .fleet import Pod
from .scenarios import Cast, Stage, Truth, scenario
from .workload import Lengths, SharedPrefixes, Stream, UnstablePrefix

UNSTABLE_NOT = ("healthy", "prefix-capacity-miss", "prefix-routing-miss", "pool-leak", "traffic-surge")


def unstable_truth(victim: Pod, onset_s: float | None, why: str) -> Truth:
    return Truth("prefix-key-unstable", {"instance": victim.instance}, onset_s, must_not=UNSTABLE_NOT, why=why)


def unstable_pair(cast: Cast) -> tuple[list[Pod], SharedPrefixes, UnstablePrefix, Lengths, float]:
    """Two pods on one model, the family that hits, the one that does not, output lengths and the rate."""
    rng = cast.rng
    system = int(rng.uniform(3000, 6500))
    tail = Lengths(rng.uniform(150, 400), 0.6)
    residency = 20 if rng.random() < 0.5 else 0
    config = EngineConfig(num_blocks=rng.randrange(12_000, 20_000, 8), residency_sample=residency, cost=cast.cost)
    pods = cast.pods(config, config)
    good = SharedPrefixes(rng, rng.randint(1, 3), Lengths(system, 0.1), tail)
    bad = UnstablePrefix(rng.choice((16, 32, 48, 64, 96)) + rng.randint(0, 12), system, tail)
    return pods, good, bad, Lengths(rng.uniform(120, 220), 0.6, 4, 1000), rng.uniform(1.4, 2.2)


@scenario("prefix-key-unstable")
def unstable(cast: Cast) -> Stage:
    """All the time one pod's prompts differ a few dozen tokens from their start."""
    pods, good, bad, output, rate = unstable_pair(cast)
    victim = cast.rng.choice(pods)
    for pod in pods:
        cast.load(pod, Stream(rate, bad if pod is victim else good, output, cast.stream_rng(pod), impatient=0.01))
    why = "Every prompt of this pod reuses the same few tokens and no more; its peer on the same model hits well."
    return Stage(cast.fleet(pods), unstable_truth(victim, None, why))


@scenario("prefix-key-unstable-falls")
def unstable_falls(cast: Cast) -> Stage:
    """At the onset a template puts a time stamp near the start of one pod's system prompt."""
    pods, good, bad, output, rate = unstable_pair(cast)
    victim = cast.rng.choice(pods)
    fleet = cast.fleet(pods)
    for pod in pods:
        stream = cast.load(pod, Stream(rate, good, output, cast.stream_rng(pod), impatient=0.01))
        if pod is victim:
            fleet.events.at(cast.onset, lambda _now, s=stream: setattr(s, "family", bad))  # type: ignore[misc]
    why = "The hit ratio falls from its baseline to a few tokens a request, while blocks lie idle."
    return Stage(fleet, unstable_truth(victim, cast.onset, why))


def capacity_miss(cast: Cast, residency: int) -> Stage:
    rng = cast.rng
    prefix = Lengths(rng.uniform(1500, 2600), 0.2)
    few, many = rng.randint(8, 14), rng.randint(90, 130)
    family = SharedPrefixes(rng, few, prefix, Lengths(rng.uniform(120, 260), 0.5), skew=rng.uniform(0.1, 0.4))
    per_prefix = prefix.mean / 16
    small = EngineConfig(num_blocks=int(per_prefix * rng.uniform(26, 36)), residency_sample=residency, cost=cast.cost)
    large = EngineConfig(
        num_blocks=int(per_prefix * many * rng.uniform(1.6, 2.2)), residency_sample=residency, cost=cast.cost
    )
    at_fault = rng.randrange(2)
    pods = cast.pods(*(small if index == at_fault else large for index in range(2)))
    output = Lengths(rng.uniform(90, 150), 0.5, 4, 600)
    fleet = cast.fleet(pods)
    rate = rng.uniform(2.4, 3.4)
    for pod in pods:
        cast.load(pod, Stream(rate, family, output, cast.stream_rng(pod), impatient=0.01))
    fleet.events.at(cast.onset, lambda _now: family.grow(rng, many))
    truth = Truth(
        "prefix-capacity-miss",
        {"instance": pods[at_fault].instance},
        cast.onset,
        also_acceptable=("kv-capacity-exhausted",),
        must_not=("healthy", "prefix-key-unstable", "pool-leak", "engine-crash"),
        why="More distinct prefixes than the pool keeps: they are evicted before they come again; a larger pool hits.",
    )
    return Stage(fleet, truth)


@scenario("prefix-capacity-miss")
def capacity_miss_seen(cast: Cast) -> Stage:
    """The number of tenants grows; block residency metrics are switched on."""
    return capacity_miss(cast, residency=10)


@scenario("prefix-capacity-miss-unsampled")
def capacity_miss_unseen(cast: Cast) -> Stage:
    """The same without block residency metrics."""
    return capacity_miss(cast, residency=0)
