"""Scenarios in which something breaks: transfers, processes, sources."""

from __future__ import annotations

from .fleet import Pod
from .scenarios import Cast, Stage, Truth, scenario
from .scenes_disagg import disaggregated
from .scenes_healthy import plain


@scenario("stuck-transfer")
def stuck(cast: Cast) -> Stage:
    """From the onset on hand-overs start and never end."""
    rng = cast.rng
    stage = disaggregated(cast, rng.uniform(0.7, 1.1), rng.uniform(2200, 3800), fit=rng.uniform(180, 300))
    stage.fleet.events.at(cast.onset, stage.hang)
    truth = Truth(
        "stuck-transfer",
        {"instance": stage.decode.instance},
        cast.onset,
        also_acceptable=("stalled-shard", "pool-leak"),
        must_not=("healthy", "kv-capacity-exhausted", "preemption-thrash", "prefix-key-unstable"),
        why="Requests wait for KV that never comes: no transfer completes any more, and nothing fails either.",
    )
    return Stage(stage.fleet, truth)


def take_over(peers: list[Pod], scale: float, now: float) -> None:
    for pod in peers:
        for stream in pod.streams:
            stream.set_scale(scale, now)


@scenario("engine-crash")
def crash(cast: Cast) -> Stage:
    """A pod dies under load and stays away for more than a minute."""
    rng = cast.rng
    pods = plain(cast)
    victim = rng.choice(pods)
    peers = [pod for pod in pods if pod is not victim]
    fleet = cast.fleet(pods)
    back = cast.onset + rng.uniform(65, 110)
    noticed = cast.onset + rng.uniform(8, 20)

    def die(now: float) -> None:
        victim.stop(now)
        victim.gpu.xid = rng.choice((0, 31, 79, 94))

    def restart(now: float) -> None:
        victim.start(now)
        take_over(peers, 1.0, now)

    fleet.events.at(cast.onset, die)
    fleet.events.at(noticed, lambda now: take_over(peers, 1.9, now))
    fleet.events.at(back, restart)
    return Stage(fleet, crash_truth(victim, cast.onset, "The pod died under load and was away for over a minute."))


@scenario("engine-crash-loop")
def crash_loop(cast: Cast) -> Stage:
    """Killed for memory again and again: each life is short."""
    rng = cast.rng
    pods = plain(cast)
    victim = rng.choice(pods)
    peers = [pod for pod in pods if pod is not victim]
    fleet = cast.fleet(pods)
    at = cast.onset
    fleet.events.at(at + rng.uniform(8, 20), lambda now: take_over(peers, 1.6, now))
    while at < 300:
        fleet.events.at(at, victim.stop)
        at += rng.uniform(18, 32)
        fleet.events.at(at, victim.start)
        at += rng.uniform(14, 30)
    return Stage(fleet, crash_truth(victim, cast.onset, "The pod is killed and restarted again and again."))


def crash_truth(victim: Pod, onset_s: float, why: str) -> Truth:
    return Truth(
        "engine-crash",
        {"instance": victim.instance},
        onset_s,
        must_not=("healthy", "pool-leak", "traffic-surge", "prefix-key-unstable", "kv-capacity-exhausted"),
        why=why,
    )


@scenario("source-blind")
def frozen_page(cast: Cast) -> Stage:
    """One page stops changing, to the last digit, while it is still served and its GPU works on."""
    pods = plain(cast)
    victim = cast.rng.choice(pods)
    victim.frozen_whole = cast.rng.random() < 0.6
    fleet = cast.fleet(pods)
    fleet.events.at(cast.onset, lambda _now: setattr(victim, "frozen", True))
    truth = Truth(
        "source-blind",
        {"instance": victim.instance},
        cast.onset,
        also_acceptable=("unknown",),
        must_not=("healthy", "stuck-transfer", "stalled-shard", "pool-leak"),
        why="The page is frozen while the engine lives: its last values are served as if they were new.",
    )
    return Stage(fleet, truth)


@scenario("source-blind-gpu")
def blind_gpu(cast: Cast) -> Stage:
    """The profiling fields of one GPU read zero while its utilisation, power and engine say that it works."""
    pods = plain(cast)
    victim = cast.rng.choice(pods)
    fleet = cast.fleet(pods)

    def go_blind(_now: float) -> None:
        victim.gpu.blind = True
        victim.gpu.xid = cast.rng.choice((0, 31, 43))

    fleet.events.at(cast.onset, go_blind)
    truth = Truth(
        "source-blind",
        {"gpu": str(victim.gpu.index)},
        cast.onset,
        must_not=("healthy", "stalled-shard", "launch-bound", "bitmap-sync", "host-cpu-starved"),
        why="Utilisation and power contradict the profiling fields: the source is broken, the GPU is not idle.",
    )
    return Stage(fleet, truth)
