"""Scenarios about room: pools too small, requests that evict each other, waste, leaks, and plain demand."""

from __future__ import annotations

from dataclasses import replace

from .config import EngineConfig
from .scenarios import Cast, Stage, Truth, scenario
from .scenes_disagg import disaggregated
from .scenes_healthy import chat_family, chat_load
from .workload import Lengths, Mixed, SharedPrefixes, Stream, Unique


def seconds_of(cast: Cast, seqs: float, output: float, tokens: float) -> float:
    """Time of a request in a batch of ``seqs`` that is always full: its steps, and the prefill work between them."""
    cost = cast.cost
    decode = output * (cost.base + seqs * (cost.decode + (tokens + output / 2) * cost.context))
    return decode + seqs * tokens * cost.prefill


@scenario("kv-capacity-exhausted")
def exhausted(cast: Cast) -> Stage:
    """One pod's pool holds far fewer requests than arrive in the time that one takes; its peer has room."""
    rng = cast.rng
    fit = rng.randint(14, 24)
    prompt, output = rng.uniform(1100, 1900), rng.uniform(190, 290)
    blocks = int(fit * (prompt + output) / 16)
    small = EngineConfig(num_blocks=blocks, watermark=rng.uniform(0.02, 0.05), cost=cast.cost)
    large = replace(small, num_blocks=int(blocks * rng.uniform(3.5, 5)))
    late = rng.random() < 0.5
    at_fault = rng.randrange(2)
    pods = cast.pods(*(small if index == at_fault and not late else large for index in range(2)))
    family = Mixed(
        (0.8, Unique(Lengths(prompt, 0.25))), (0.2, SharedPrefixes(rng, 3, Lengths(prompt / 2), Lengths(400)))
    )
    rate = rng.uniform(1.15, 1.35) * fit / seconds_of(cast, fit, output, prompt)
    for pod in pods:
        cast.load(pod, Stream(rate, family, Lengths(output, 0.35, 8, 600), cast.stream_rng(pod), max_tokens=600))
    fleet = cast.fleet(pods, 40.0)
    victim = pods[at_fault]
    if late:
        fleet.events.at(cast.onset - rng.uniform(12, 20), victim.stop)
        fleet.events.at(cast.onset - 14.5, lambda _now: setattr(victim, "config", small))
        fleet.events.at(cast.onset, victim.start)
    truth = Truth(
        "kv-capacity-exhausted",
        {"instance": victim.instance},
        cast.onset if late else None,
        also_acceptable=("preemption-thrash",),
        must_not=("healthy", "pool-leak", "prefix-key-unstable", "stuck-transfer", "traffic-surge"),
        why="The pool is full and requests wait for capacity; the same load fits the peer's larger pool.",
    )
    return Stage(fleet, truth)


@scenario("preemption-thrash")
def thrash(cast: Cast) -> Stage:
    """Short prompts are let in by the dozen, then their long outputs evict each other again and again."""
    rng = cast.rng
    prompt, output = rng.uniform(120, 260), rng.uniform(900, 1400)
    fit = rng.randint(16, 26)
    config = EngineConfig(num_blocks=int(fit * (prompt + output) / 16), max_num_seqs=256, cost=cast.cost)
    pods = cast.pods(config, config)
    at_fault = rng.randrange(2)
    short = Lengths(output / rng.uniform(5, 7), 0.5, 4, 900)
    long = Lengths(output, 0.35, 64, 4096)
    rate = 1.5 * fit / seconds_of(cast, fit, output, prompt)
    fleet = cast.fleet(pods)
    for index, pod in enumerate(pods):
        stream = cast.load(pod, Stream(rate, chat_small(cast, prompt), short, cast.stream_rng(pod), max_tokens=4096))
        if index == at_fault:
            fleet.events.at(cast.onset, lambda _now, s=stream: setattr(s, "output", long))  # type: ignore[misc]
    truth = Truth(
        "preemption-thrash",
        {"instance": pods[at_fault].instance},
        cast.onset,
        also_acceptable=("kv-capacity-exhausted",),
        must_not=("healthy", "pool-leak", "prefix-key-unstable", "stuck-transfer", "engine-crash"),
        why="Outputs grow several times longer; requests are preempted and recomputed again and again.",
    )
    return Stage(fleet, truth)


def chat_small(cast: Cast, prompt: float) -> Mixed:
    shared = SharedPrefixes(cast.rng, 4, Lengths(prompt / 2, 0.2, 32), Lengths(prompt / 2, 0.5))
    return Mixed((0.6, Unique(Lengths(prompt, 0.4))), (0.4, shared))


@scenario("internal-fragmentation")
def fragmentation(cast: Cast) -> Stage:
    """The block was inflated to some two thousand tokens; chats of a few hundred take a whole one each."""
    rng = cast.rng
    block = rng.choice((1056, 1584, 2096, 2128, 2192))
    count = rng.randint(110, 170)
    large = EngineConfig(num_blocks=count, block_tokens=block, max_num_seqs=512, cost=cast.cost)
    normal = EngineConfig(num_blocks=count * block // 16 * 2 // 3, cost=cast.cost)
    at_fault = rng.randrange(2)
    pods = cast.pods(*(large if index == at_fault else normal for index in range(2)))
    prompt, output = rng.uniform(220, 360), rng.uniform(90, 150)
    family = chat_small(cast, prompt)
    seconds = seconds_of(cast, count, output, prompt)
    for pod in pods:
        rate = (rng.uniform(0.97, 1.03) if pod is pods[at_fault] else 0.25) * count / seconds
        cast.load(pod, Stream(rate, family, Lengths(output, 0.5, 4, 600), cast.stream_rng(pod), max_tokens=600))
    if rng.random() < 0.5:
        pods[1 - at_fault].model = "granite-8b" if cast.model != "granite-8b" else "phi-4"
    truth = Truth(
        "internal-fragmentation",
        {"instance": pods[at_fault].instance},
        also_acceptable=("kv-capacity-exhausted",),
        must_not=("healthy", "pool-leak", "preemption-thrash", "traffic-surge"),
        why="Blocks far larger than the requests: the pool reads full while most of its slots hold no token.",
    )
    return Stage(cast.fleet(pods, 30.0), truth)


@scenario("pool-leak")
def leak(cast: Cast) -> Stage:
    """From the onset on, blocks of requests whose client hung up are never given back."""
    rng = cast.rng
    config = EngineConfig(num_blocks=rng.randrange(6000, 9000, 8), cost=cast.cost)
    pods = cast.pods(config, config)
    chat_load(cast, pods, chat_family(cast), rng.uniform(1.8, 2.6))
    for pod in pods:
        for stream in pod.streams:
            stream.impatient, stream.patience = rng.uniform(0.2, 0.3), rng.uniform(1.5, 3.0)
    victim = rng.choice(pods)
    fleet = cast.fleet(pods)
    # A second reference on shared blocks keeps them too, so every such request costs its whole length once.
    unique = Unique(Lengths(rng.uniform(1300, 2200), 0.4))
    for pod in pods:
        for stream in pod.streams:
            stream.family = Mixed((0.5, stream.family), (0.5, unique))
    fleet.events.at(cast.onset, lambda _now: setattr(victim.engine, "leak_aborts", True))
    truth = Truth(
        "pool-leak",
        {"instance": victim.instance},
        cast.onset,
        also_acceptable=("session-leak", "kv-capacity-exhausted"),
        must_not=("healthy", "traffic-surge", "prefix-key-unstable", "prefix-capacity-miss"),
        why="The pool creeps up under a flat load: aborted requests keep their blocks.",
    )
    return Stage(fleet, truth)


@scenario("pool-leak-prefill")
def leak_prefill(cast: Cast) -> Stage:
    """The decode pod dies; the prefill pod keeps the prompts that nobody will read."""
    rng = cast.rng
    stage = disaggregated(cast, rng.uniform(2.2, 3.2), rng.uniform(2800, 4600), fit=rng.uniform(65, 100))
    prefill, decode = stage.prefill, stage.decode
    fleet = stage.fleet
    fleet.events.at(cast.onset, decode.stop)
    end = cast.onset + rng.uniform(18, 35)
    for stream in prefill.streams:
        fleet.events.at(end, lambda now, s=stream: s.set_scale(0.0, now))  # type: ignore[misc]
    truth = Truth(
        "pool-leak",
        {"instance": prefill.instance},
        cast.onset,
        also_acceptable=("session-leak", "stuck-transfer", "engine-crash"),
        must_not=("healthy", "kv-capacity-exhausted", "prefix-capacity-miss"),
        why="Nothing runs or waits on the prefill pod, yet its pool stays held for a reader that died.",
    )
    return Stage(fleet, truth)


@scenario("traffic-surge")
def surge(cast: Cast) -> Stage:
    """Three times the requests on every replica at once, each like before: demand beyond what was sized for."""
    rng = cast.rng
    fit = rng.randint(22, 34)
    prompt, output = rng.uniform(800, 1400), rng.uniform(160, 260)
    config = EngineConfig(
        num_blocks=int(fit * (prompt + output) / 16), watermark=rng.uniform(0.02, 0.04), cost=cast.cost
    )
    pods = cast.pods(*[config] * rng.choice((2, 2, 3)))
    family = Mixed(
        (0.6, Unique(Lengths(prompt, 0.35))), (0.4, SharedPrefixes(rng, 4, Lengths(prompt * 0.6), Lengths(300)))
    )
    rate = 0.5 * fit / seconds_of(cast, fit, output, prompt)
    factor = rng.uniform(2.7, 3.6)
    fleet = cast.fleet(pods)
    for pod in pods:
        stream = Stream(
            rate * rng.uniform(0.95, 1.05), family, Lengths(output, 0.4, 8, 900), cast.stream_rng(pod), max_tokens=900
        )
        cast.load(pod, stream)
        fleet.events.at(cast.onset, lambda now, s=stream: s.set_scale(factor, now))  # type: ignore[misc]
    truth = Truth(
        "traffic-surge",
        {},
        cast.onset,
        also_acceptable=("kv-capacity-exhausted",),
        must_not=("healthy", "pool-leak", "prefix-key-unstable", "stuck-transfer", "engine-crash"),
        why="Arrivals triple on every replica alike; lengths, hits and per-request work are as before.",
    )
    return Stage(fleet, truth)
