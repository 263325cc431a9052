"""One run: start the store or the loops, let clients work, strike, watch, and ask for a diagnosis."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kvstore.cluster import LocalCluster
from playbooks.engine import Case, diagnose
from playbooks.grid import Grid
from playbooks.lab.live.load import Load, Report
from playbooks.lab.live.loops import LoopPlan, LoopReport, Loops
from playbooks.lab.live.plan import SHARDS, Draw, Plan, Scenario
from playbooks.lab.live.traffic import Traffic
from playbooks.lab.scenarios import Truth
from playbooks.playbook import load_playbooks
from playbooks.verdict import Diagnosis, SourceLine
from probes.attach import Attachment, attach
from probes.recorder import Recorder
from probes.rules import RuleSet

INTERVAL_MS = 1_000
Progress = Callable[[float, str], None]
"""Called about once a second with the seconds since the start and what is going on."""


@dataclass(frozen=True)
class Outcome:
    """`struck_s` seconds from the first scrape to the fault (None: it was there from the start, or there is none).

    `report`: what the clients of a store saw; `loops`: what decode loops did; one of them is there. `stand_in`: what
    stood for the real thing in this run.
    """

    scenario: str
    level: int
    seed: int
    truth: Truth
    diagnosis: Diagnosis
    struck_s: float | None
    recording: Path | None = None
    stand_in: str = ""
    report: Report | None = None
    loops: tuple[LoopReport, ...] = ()


@dataclass(frozen=True)
class Watch:
    """How a run is looked at: for how long, into which recording, and who is told."""

    seconds: float
    recording: Path | None = None
    progress: Progress | None = None


class Rig:
    """A running store under load, in the hands of a fault."""

    def __init__(self, cluster: LocalCluster, traffic: Traffic, load: Load) -> None:
        self.cluster = cluster
        self.traffic = traffic
        self.load = load

    def change(self, load: Load) -> None:
        """From now on the clients behave like this."""
        self.load = load
        self.traffic.change(load)

    def signal(self, shard: int, number: signal.Signals) -> None:
        """Send a signal to a shard's process; the cluster ends stopped ones too."""
        self.cluster.kill(shard, number)


def rehearse(
    scenario: Scenario,
    level: int = 2,
    seed: int = 0,
    *,
    seconds: float | None = None,
    recording: Path | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run one scenario and diagnose it. Raises what the store raises when it cannot be started (`StoreError`)."""
    plan = scenario.build(Draw(seed, level))
    watch = Watch(seconds or plan.seconds, recording, progress)
    if isinstance(plan, LoopPlan):
        return _of_loops(scenario, plan, Draw(seed, level), watch)
    return _of_store(scenario, plan, Draw(seed, level), watch)


def _of_store(scenario: Scenario, plan: Plan, draw: Draw, watch: Watch) -> Outcome:
    with (
        LocalCluster(
            shards=SHARDS,
            layout=plan.layout,
            blocks=plan.blocks,
            placement="head-group-window",
            own=plan.own,
            environment=plan.environment,
            **plan.options,
        ) as cluster,
        Traffic(cluster.file, plan.layout, plan.load, draw.seed, plan.transport) as traffic,
    ):
        rig = Rig(cluster, traffic, plan.load)
        fault = plan.fault
        strike = Strike(plan.onset_s, partial(fault, rig)) if fault and plan.onset_s is not None else None
        watched = asyncio.run(_watch(cluster.metrics_urls, watch, strike))
        report = traffic.report()
    truth = _with_instance(plan.truth, cluster.metrics_urls)
    return Outcome(
        scenario.name, draw.level, draw.seed, truth, watched.diagnosis, watched.struck_s, watch.recording,
        scenario.stand_in, report=report,
    )  # fmt: skip


def _of_loops(scenario: Scenario, plan: LoopPlan, draw: Draw, watch: Watch) -> Outcome:
    with Loops(plan.loops) as loops:
        watched = asyncio.run(_watch(loops.metrics_urls, watch, None))
        reports = loops.reports()
    stand_in = scenario.stand_in if "cpu" in {report.device for report in reports} else ""
    truth = _with_instance(plan.truth, loops.metrics_urls)
    return Outcome(
        scenario.name, draw.level, draw.seed, truth, watched.diagnosis, None, watch.recording, stand_in, loops=reports
    )


@dataclass(frozen=True)
class Strike:
    """A fault that comes at `onset_s`."""

    onset_s: float
    fault: Callable[[], None]


@dataclass(frozen=True)
class _Watched:
    diagnosis: Diagnosis
    struck_s: float | None


async def _watch(targets: Sequence[str], watch: Watch, strike: Strike | None) -> _Watched:
    rules = RuleSet.load()
    attachment = attach(targets, interval_ms=INTERVAL_MS, rules=rules, timeout_s=2.0)
    recorder = Recorder(watch.recording, attachment.store, overwrite=True) if watch.recording else None
    start = time.monotonic()
    struck: float | None = None
    turn = 0
    try:
        while (now := time.monotonic() - start) < watch.seconds:
            if strike and struck is None and now >= strike.onset_s:
                strike.fault()
                struck = now
            await attachment.cycle(round(time.time() * 1000))
            if recorder:
                recorder.record()
            if watch.progress:
                watch.progress(now, "struck" if struck is not None else "running")
            turn += 1
            await asyncio.sleep(max(0.0, start + turn * INTERVAL_MS / 1000 - time.monotonic()))
    finally:
        await attachment.close()
        if recorder:
            recorder.record()
            recorder.close()
    return _Watched(_diagnosis(attachment, rules), struck)


def _diagnosis(attachment: Attachment, rules: RuleSet) -> Diagnosis:
    span = attachment.span()
    now = round(time.time() * 1000)
    start, end = span or (now, now)
    sources = tuple(SourceLine(one.target, one.state, one.age_s(end), one.error) for one in attachment.statuses)
    grid = Grid(start, end, INTERVAL_MS, None)
    return diagnose(attachment.view, Case(grid, sources, ()), load_playbooks(), rules)


def _with_instance(truth: Truth, urls: Sequence[str]) -> Truth:
    """The shard's number is what a scenario knows; its address comes from the processes that run."""
    shard = truth.member.get("shard")
    if shard is None:
        return truth
    address = urls[int(shard)].split("//", 1)[1].split("/", 1)[0]
    return Truth(truth.cause, {"shard": shard, "instance": address}, truth.onset_s, why=truth.why)
