"""Named scenarios: each builds a fleet from a seed and says what is true of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from .config import EngineConfig, StepCost
from .fleet import Fleet, Pod, make_gpu
from .hardware import GPUS, Node
from .workload import Stream, Wave

MODELS = ("llama-3-8b", "qwen3-14b", "mistral-small", "gemma-3-27b", "phi-4", "granite-8b", "glm-4-9b", "olmo-2-13b")
PREFIXES = ("chat", "api", "llm", "serve", "infer", "gen", "engine", "worker")


@dataclass(frozen=True)
class Truth:
    """What a diagnosis should say: ``cause`` is an id of the closed set or ``healthy``.

    ``member`` are the labels of the thing at fault ({}: none), ``onset_s`` seconds from the first scrape (None: the
    whole window), ``ground`` numbers that only the simulator knows.
    """

    cause: str
    member: Mapping[str, str] = field(default_factory=dict)
    onset_s: float | None = None
    also_acceptable: tuple[str, ...] = ()
    must_not: tuple[str, ...] = ()
    why: str = ""
    ground: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Stage:
    """A scenario ready to run; ``keep`` names the families of its recording (none: the usual ones)."""

    fleet: Fleet
    truth: Truth
    seconds: float = 300.0
    keep: tuple[str, ...] = ()


Builder = Callable[["Cast"], Stage]


@dataclass
class Cast:
    """The random choices that every scenario shares: names, model, GPU, speed, onset."""

    rng: Random
    seed: int

    def __post_init__(self) -> None:
        rng = self.rng
        self.model = rng.choice(MODELS)
        self.prefix = rng.choice(PREFIXES)
        self.gpu = rng.choice(GPUS)
        self.cost = StepCost(
            base=rng.uniform(0.014, 0.022),
            prefill=rng.uniform(3.5e-5, 7e-5),
            decode=rng.uniform(6e-5, 1.4e-4),
            context=rng.uniform(2e-8, 4e-8),
            noise=rng.uniform(0.03, 0.07),
        )
        self.epoch = 1_780_000_000 + rng.randrange(0, 400_000) * 60
        self.onset = float(round(rng.uniform(115, 150)))
        self.node = f"{rng.choice(('node', 'gpu', 'host', 'rack3'))}-{rng.choice('abcdefgh')}"

    def pods(self, *configs: EngineConfig, names: tuple[str, ...] = ()) -> list[Pod]:
        """One pod a configuration, on one node."""
        made = []
        for index, config in enumerate(configs):
            name = names[index] if names else f"{self.prefix}-{index}"
            rng = Random(f"{self.seed}/{name}/{index}")
            pod = Pod(name, self.model, config, rng, make_gpu(self.node, index, rng, self.gpu))
            pod.uptime = self.rng.uniform(2 * 3600, 9 * 86_400)
            made.append(pod)
        return made

    def fleet(self, pods: list[Pod], warm_s: float = 60.0) -> Fleet:
        nodes = [Node(name, Random(f"{self.seed}/{name}")) for name in dict.fromkeys(pod.gpu.node for pod in pods)]
        fleet = Fleet(self.epoch, pods, nodes, warm_s=warm_s)
        if self.rng.random() < 0.25:
            fleet.pod_labels = (("namespace", self.rng.choice(("prod", "serving", "team-a"))),)
        if self.rng.random() < 0.3:
            fleet.miss = (Random(f"{self.seed}/miss"), self.rng.uniform(0.002, 0.006))
        return fleet

    def stream_rng(self, pod: Pod, part: str = "") -> Random:
        return Random(f"{self.seed}/{pod.name}/stream/{part}")

    def load(self, pod: Pod, stream: Stream) -> Stream:
        """Add a stream to a pod; its rate swings a little, as all load does."""
        rng = self.stream_rng(pod, f"wave{len(pod.streams)}")
        stream.wave = Wave(rng.uniform(0.0, 0.12), rng.uniform(80, 260), rng.uniform(0, 6.28))
        pod.streams.append(stream)
        return stream


SCENARIOS: dict[str, Builder] = {}


def scenario(name: str) -> Callable[[Builder], Builder]:
    """Register a builder under this name."""

    def register(builder: Builder) -> Builder:
        SCENARIOS[name] = builder
        return builder

    return register


def _gather() -> None:
    """Import what registers scenarios."""
    from . import (  # noqa: F401
        scenes_capacity,
        scenes_demo,
        scenes_faults,
        scenes_gpu,
        scenes_gpu_links,
        scenes_gpu_store,
        scenes_healthy,
        scenes_prefix,
        scenes_rails,
        store_faults,
        store_scenes,
    )


def build(name: str, seed: int) -> Stage:
    """Build the scenario; raises KeyError with the known names."""
    _gather()

    if name not in SCENARIOS:
        raise KeyError(f"no scenario {name!r}; known: {', '.join(sorted(SCENARIOS))}")
    return SCENARIOS[name](Cast(Random(f"{name}/{seed}"), seed))


def scenario_names() -> list[str]:
    _gather()

    return sorted(SCENARIOS)
