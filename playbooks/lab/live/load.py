"""What the lab's clients do: kinds of conversations, as numbers. `traffic.py` turns them into calls."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Kind:
    """Conversations of one session class.

    `arrivals_per_s` new ones; each has `turns` (mean) turns, `think_s` (mean) apart; the first brings `first_tokens`,
    every further one `turn_tokens` (means, log-normal around). `prefixes` shared beginnings of `prefix_tokens` tokens
    (0: none). `closes`: the share that closes its session at the end. `one_run`: its windows must lie in one run.
    """

    name: str
    arrivals_per_s: float = 0.5
    turns: float = 4.0
    think_s: float = 3.0
    first_tokens: float = 900.0
    turn_tokens: float = 200.0
    spread: float = 0.4
    prefixes: int = 3
    prefix_tokens: int = 512
    closes: float = 1.0
    ttl_s: float = 300.0
    one_run: bool = False


@dataclass(frozen=True)
class Hot:
    """One chain that is asked for over and over: `per_s` lookups and reads of a window that shard `shard` owns."""

    shard: int
    per_s: float


@dataclass(frozen=True)
class Scattered:
    """Windows that shard `shard` owns are put out of order, a `share` of them: neighbours in a chain lie apart."""

    shard: int
    share: float


@dataclass(frozen=True)
class Load:
    """All of it."""

    kinds: tuple[Kind, ...]
    durability: int = 0
    hot: Hot | None = None
    scattered: Scattered | None = None

    def with_kind(self, name: str, **changes: Any) -> Load:
        """The same with one kind changed; `KeyError` when there is none of that name."""
        if name not in {kind.name for kind in self.kinds}:
            raise KeyError(name)
        kinds = tuple(replace(kind, **changes) if kind.name == name else kind for kind in self.kinds)
        return replace(self, kinds=kinds)

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Load:
        values = json.loads(text)
        hot, scattered = values.pop("hot"), values.pop("scattered")
        kinds = tuple(Kind(**kind) for kind in values.pop("kinds"))
        return cls(
            kinds=kinds,
            hot=Hot(**hot) if hot else None,
            scattered=Scattered(**scattered) if scattered else None,
            **values,
        )


@dataclass
class Report:
    """What the clients saw, for the person who runs the lab; no diagnosis reads it."""

    turns: int = 0
    hit_blocks: int = 0
    missed_blocks: int = 0
    put_blocks: int = 0
    refused: int = 0
    errors: int = 0
    latest_error: str = ""
    turn_seconds: list[float] = field(default_factory=list)


def usual(scale: float = 1.0) -> Load:
    """Three kinds that share a store: a chat, an agent with long tool outputs, a batch job."""
    return Load(
        (
            Kind("chat", 0.5 * scale),
            Kind("agent", 0.25 * scale, turns=6, think_s=2, first_tokens=1500, turn_tokens=400, prefixes=2),
            Kind("batch", 0.5 * scale, turns=1.5, think_s=1, first_tokens=1200, prefixes=1),
        )
    )
