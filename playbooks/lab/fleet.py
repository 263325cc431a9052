"""Pods under load, events at given times, and the scrapes of everything: one run of a scenario."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from .config import EngineConfig
from .exposition import Family, LabelPairs, ProcessFacts, engine_families, merged, process_families
from .hardware import GPUS, Gpu, GpuModel, Node
from .recorder import Recorder
from .scheduler import Engine
from .timers import Timers
from .workload import Stream

TICK_S = 1.0
"""Engines advance side by side in ticks of this length, so that what one hands another is at most so late."""

Hook = Callable[[Engine], None]


@dataclass
class Pod:
    """One engine process, its streams of requests, and what its page says about the process."""

    name: str
    model: str
    config: EngineConfig
    rng: Random
    gpu: Gpu
    port: int = 8000
    streams: list[Stream] = field(default_factory=list)
    uptime: float = 86_400.0
    on_start: Hook | None = None
    labels: LabelPairs = ()
    """Labels of its target beyond those of the fleet's."""
    more: Callable[[float], list[Family]] | None = None
    """Further families of its page (a connector's), asked at each scrape with the seconds since the last one."""
    engine: Engine | None = None
    frozen: bool = False
    frozen_whole: bool = True
    _started: float = 0.0
    _cpu: float = 0.0
    _resident: float = 0.0
    _page: list[Family] | None = None

    @property
    def instance(self) -> str:
        return f"{self.name}:{self.port}"

    @property
    def alive(self) -> bool:
        return self.engine is not None

    def start(self, now: float) -> None:
        """A new process with empty counters; its streams come back to it."""
        self.engine = Engine(self.config, self.rng, now)
        self._started = now
        self._cpu = 0.0
        self._resident = self.rng.uniform(5e9, 9e9)
        self.gpu.reset()
        if self.on_start is not None:
            self.on_start(self.engine)
        for stream in self.streams:
            stream.attach(self.engine, now)

    def stop(self, now: float) -> None:
        """The process dies; what it ran is lost."""
        self.engine = None
        for stream in self.streams:
            stream.attach(None, now)

    def age(self, now: float, uptime: float) -> None:
        """Pretend that it has run like this for ``uptime`` seconds."""
        if self.engine is None:
            return
        lived = max(1.0, now - self._started)
        self.engine.meters.scale_history(max(1, round(uptime / lived)))
        self._started = now - uptime
        self._cpu = uptime * self.rng.uniform(1.05, 1.15)

    def page(self, now: float, epoch: float, seconds: float) -> list[Family]:
        """What a scrape reads at ``now``; ``epoch`` is the Unix time of 0, ``seconds`` the time since the last one."""
        engine = self.engine
        if engine is None:
            return []
        busy = 0.15 if not engine.running else 1.0
        self._cpu += seconds * abs(self.rng.gauss(1.1, 0.05)) * busy
        resident = self._resident * self.rng.gauss(1.0, 0.002)
        facts = ProcessFacts(round(epoch + self._started, 2), self._cpu, float(round(resident)))
        if self.frozen and self._page is not None:
            if self.frozen_whole:
                return self._page
            return [*self._page[:-4], *process_families(facts, engine.meters)[:-1], self._page[-1]]
        more = [] if self.more is None else self.more(seconds)
        self._page = [*engine_families(engine, self.model), *more, *process_families(facts, engine.meters)]
        return self._page


@dataclass
class Fleet:
    """Pods, their nodes, and what happens to them. Times are seconds from the first scrape (before it: warm-up).

    ``pod_labels`` are more target labels than job and instance; ``miss`` is the chance that a scrape of a pod fails.
    """

    epoch: int
    pods: list[Pod]
    nodes: list[Node]
    events: Timers = field(default_factory=Timers)
    warm_s: float = 60.0
    pod_labels: LabelPairs = ()
    miss: tuple[Random, float] | None = None

    def warm_up(self) -> None:
        """Run before the first scrape, then age every pod that is up to its ``uptime``."""
        start = -self.warm_s
        for pod in self.pods:
            if pod.uptime > 0:
                pod.start(start)
        self._advance(start, 0.0)
        for pod in self.pods:
            if pod.alive:
                pod.age(0.0, pod.uptime)
                pod.gpu.observe(pod.engine, self.warm_s)
        for pod in self.pods:
            if not pod.alive and pod.uptime == 0:
                pod.start(0.0)

    def record(self, seconds: float, interval_s: float) -> Recorder:
        """Scrape every target at 0, ``interval_s``, … ``seconds``."""
        recorder = Recorder()
        self.warm_up()
        answered = self._answered()
        for index in range(round(seconds / interval_s) + 1):
            now = index * interval_s
            if index:
                self._advance(now - interval_s, now)
            before, answered = answered, self._answered()
            for node in self.nodes:
                node.observe(interval_s, max(0.0, float(answered - before)))
            self._scrape(recorder, now, interval_s, first=index == 0)
        return recorder

    def _answered(self) -> int:
        return sum(sum(pod.engine.meters.success.values()) for pod in self.pods if pod.engine is not None)

    def _advance(self, start: float, end: float) -> None:
        now = start
        while now < end:
            now = min(end, now + TICK_S)
            self.events.fire(now - TICK_S)
            for pod in self.pods:
                if pod.engine is not None:
                    pod.engine.advance(now)
        self.events.fire(end)

    def _scrape(self, recorder: Recorder, now: float, seconds: float, first: bool) -> None:
        time_ms = round((self.epoch + now) * 1000)
        for pod in self.pods:
            target = merged(self.pod_labels, ("instance", pod.instance), ("job", "vllm"), *pod.labels)
            page = pod.page(now, float(self.epoch), seconds)
            if self.miss is not None and self.miss[0].random() < self.miss[1]:
                page = []
            recorder.add([_up(bool(page)), *page], time_ms, target)
            if not first:
                pod.gpu.observe(pod.engine, seconds)
        for node in self.nodes:
            dcgm: LabelPairs = (("instance", f"{node.name}:9400"), ("job", "dcgm"))
            devices = [pod.gpu for pod in self.pods if pod.gpu.node == node.name and pod.gpu.dcgm]
            if devices:
                recorder.add([_up(True)], time_ms, dcgm)
            for gpu in devices:
                recorder.add(gpu.families(), time_ms, dcgm)
            recorder.add([_up(True), *node.families()], time_ms, (("instance", f"{node.name}:9100"), ("job", "node")))
            for beside in node.beside:
                if not first:
                    beside.observe(seconds)
                recorder.add(beside.families(), time_ms, beside.target)


def _up(answered: bool) -> Family:
    return Family("up", "gauge", "1 when the scrape succeeded.").one(float(answered))


def make_gpu(node: str, index: int, rng: Random, model: GpuModel | None = None) -> Gpu:
    """A device with a made-up UUID."""
    return Gpu(index, f"GPU-{rng.getrandbits(32):08x}", node, model or rng.choice(GPUS), rng)
