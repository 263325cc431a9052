"""What a scenario prepares: a store, a load, a fault, and the answer that a diagnosis should give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from playbooks.lab.live.load import Load, usual
from playbooks.lab.scenarios import Truth

if TYPE_CHECKING:
    from kvstore.layout import Layout
    from playbooks.lab.live.loops import LoopPlan
    from playbooks.lab.live.rig import Rig

SHARDS = 4
LEVELS = (0, 1, 2, 3)
"""0: the scenario without its fault (nothing may be found); 1 mild, 2 plain, 3 severe."""


def lab_layout(block_tokens: int = 16) -> Layout:
    """The layout of the lab's model (the store is imported here: a list of scenarios needs none)."""
    from kvstore.layout import Layout

    return Layout("lab-8b", head_dim=32, block_tokens=block_tokens)


Fault = Callable[["Rig"], None]


@dataclass
class Plan:
    """`options` go to every shard, `own` to one by its number; `fault` strikes at `onset_s` (None: from the start).

    `transport`: how the clients reach the blocks (`Client.connect`).
    """

    truth: Truth
    load: Load = field(default_factory=usual)
    layout: Layout = field(default_factory=lab_layout)
    blocks: int = 8192
    options: dict[str, Any] = field(default_factory=dict)
    own: dict[int, dict[str, Any]] = field(default_factory=dict)
    environment: dict[int, dict[str, str]] = field(default_factory=dict)
    transport: str = "auto"
    fault: Fault | None = None
    onset_s: float | None = None
    seconds: float = 120.0


@dataclass(frozen=True)
class Draw:
    """The choices of a seed: which shard, which session class; and how strong the fault is."""

    seed: int
    level: int

    @property
    def rng(self) -> Random:
        return Random(f"lab/{self.seed}")

    @property
    def shard(self) -> int:
        return self.rng.randrange(SHARDS)

    @property
    def kind(self) -> str:
        kinds = usual().kinds
        return kinds[self.seed % len(kinds)].name

    def by_level(self, mild: float, plain: float, severe: float) -> float:
        """The strength of the level; level 0 has none and must not ask."""
        return (mild, plain, severe)[self.level - 1]


@dataclass(frozen=True)
class Scenario:
    """One fault of the lab: `needs` name what the host must be able to do (`host.py`)."""

    name: str
    says: str
    build: Callable[[Draw], Plan | LoopPlan]
    needs: tuple[str, ...] = ()
    stand_in: str = ""
    """What stands in for the real thing on this host, said in the list and in the report."""


SCENARIOS: dict[str, Scenario] = {}


def scenario(name: str, says: str, *, needs: tuple[str, ...] = (), stand_in: str = "") -> Callable[..., Any]:
    """Register a builder."""

    def register(build: Callable[[Draw], Plan | LoopPlan]) -> Callable[[Draw], Plan | LoopPlan]:
        SCENARIOS[name] = Scenario(name, says, build, needs, stand_in)
        return build

    return register
