"""What the Pool screen shows of each pool: block map, runs, waste, sessions, and what the pool let go or refused.

Asked only while the screen is up. No textual here. A value that a source does not give is None or an empty mapping;
what is missing is never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from probes.labels import Labels
from tui.names import entity_name
from tui.reading import Asked, ask, duration, entity_of, sort_key


class Cell(IntEnum):
    """What most blocks of a stretch of the pool are: the values of ``kv:block_map``."""

    FREE = 0
    CACHED = 1
    USED = 2
    LEASED = 3
    WASTE = 4
    RESERVED = 5


UNKNOWN = -1
"""A cell whose value is none that we know."""
Shares = Mapping[str, float]
"""A label's value to a number."""


@dataclass(frozen=True, slots=True)
class SessionClass:
    """Sessions of one class; ``returns`` are a second, by result (alive, expired), None where not counted yet."""

    name: str
    active: float | None
    idle: float | None
    blocks: float | None
    ttl_s: float | None
    alive: float | None
    expired: float | None


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool at one moment; ``age_s`` is set where its source is silent and these are its last values (s).

    ``cells`` are `Cell` or `UNKNOWN`, in the order of the pool, each ``cell_blocks`` blocks; empty: no block map.
    ``states``, ``runs`` in blocks, ``slots`` in token slots; ``evicted`` and ``refused`` a second, by reason.
    ``estimated_waste`` is the share of slots that half a block a request leaves empty, for engines that do not count.
    """

    entity: Labels
    system: str = ""
    cells: tuple[int, ...] = ()
    cell_blocks: float | None = None
    states: Shares = field(default_factory=dict)
    runs: Shares = field(default_factory=dict)
    slots: Shares = field(default_factory=dict)
    evicted: Shares = field(default_factory=dict)
    refused: Shares = field(default_factory=dict)
    numbers: Shares = field(default_factory=dict)
    sessions: tuple[SessionClass, ...] = ()
    age_s: float | None = None

    @property
    def name(self) -> str:
        return entity_name(self.entity.as_dict())

    def number(self, name: str) -> float | None:
        return self.numbers.get(name)

    def share(self, state: str) -> float | None:
        """A state's share of the blocks."""
        total = math.fsum(self.states.values())
        return self.states[state] / total if state in self.states and total > 0 else None

    @property
    def window_blocks(self) -> int | None:
        """Blocks of the run that one window takes."""
        window, block = self.number("window_tokens"), self.number("block_tokens")
        return math.ceil(window / block) if window and block else None

    @property
    def waste(self) -> float | None:
        """Share of the published slots that are empty behind the last token."""
        total = math.fsum(self.slots.values())
        return self.slots["tail_waste"] / total if "tail_waste" in self.slots and total > 0 else None


_BY = "by (shard, instance, engine)"
_NUMBERS = {
    "usage": f"sum {_BY} (kv:pool_usage_ratio)",
    "blocks": f"max {_BY} (kv:pool_blocks)",
    "block_tokens": f"max {_BY} (kv:block_tokens)",
    "bytes": f"max {_BY} (kv:pool_bytes)",
    "window_tokens": f"max {_BY} (kv:window_tokens)",
    "free_runs": f"max {_BY} (kv:pool_free_runs)",
    "largest_run": f"max {_BY} (kv:pool_largest_free_run_blocks)",
    "cell_blocks": f"max {_BY} (kv:block_map_cell_blocks)",
    "runs_each": (
        f"sum {_BY} (rate(kv:allocation_runs_sum[$window])) / sum {_BY} (rate(kv:allocation_runs_count[$window]))"
    ),
    "leases": f"sum {_BY} (kv:leases)",
    "pins": f"sum {_BY} (kv:pins)",
}


def _split(label: str, name: str) -> str:
    return f"sum by (shard, instance, engine, {label}) ({name})"


_TABLES = {
    "map": ("cell", "kv:block_map"),
    "states": ("state", _split("state", "kv:pool_state_blocks")),
    "runs": ("run", _split("run", "kv:pool_free_blocks_by_run")),
    "slots": ("state", _split("state", "kv:pool_token_slots")),
    "evicted": ("reason", _split("reason", "rate(kv:evicted_blocks_total[$window])")),
    "refused": ("reason", _split("reason", "rate(kv:put_refusals_total[$window])")),
}
_SESSIONS = {
    "active": _split("session_class", 'kv:sessions{state="active"}'),
    "idle": _split("session_class", 'kv:sessions{state="idle"}'),
    "blocks": _split("session_class", "kv:session_blocks"),
    "ttl_s": "max by (shard, instance, engine, session_class) (kv:session_ttl_seconds)",
    "alive": _split("session_class", 'rate(kv:session_returns_total{result="alive"}[$window])'),
    "expired": _split("session_class", 'rate(kv:session_returns_total{result="expired"}[$window])'),
}


class PoolObserver:
    """Asks for all pools, and keeps what a pool showed last for when its source is silent."""

    def __init__(self, view: Asked, span_ms: int) -> None:
        self.view, self.span_ms = view, span_ms
        self._last: dict[Labels, tuple[int, Pool]] = {}

    def observe(self, at_ms: int, window_ms: int) -> tuple[Pool, ...]:
        """The pools at a moment, in the order of the table."""
        found = {pool.entity: pool for pool in pools(self.view, at_ms, window_ms)}
        self._last = {e: kept for e, kept in self._last.items() if 0 <= at_ms - kept[0] <= self.span_ms}
        for entity, (then, pool) in self._last.items():
            if entity not in found:
                found[entity] = replace(pool, age_s=(at_ms - then) / 1000)
        self._last |= {entity: (at_ms, pool) for entity, pool in found.items() if pool.age_s is None}
        return tuple(found[entity] for entity in sorted(found, key=sort_key))


def pools(view: Asked, at_ms: int, window_ms: int) -> list[Pool]:
    """Every pool that says at least how full it is, or how many blocks it has."""
    window = duration(window_ms)
    numbers = {name: ask(view, expr.replace("$window", window), at_ms) for name, expr in _NUMBERS.items()}
    numbers["estimated_waste"] = ask(view, _estimate().replace("$window", window), at_ms)
    entities = dict.fromkeys(entity for name in ("usage", "blocks") for entity in numbers[name] if entity)
    system = {entity_of(one): one.get("system") for one in view.instant("kv:pool_usage_ratio", at_ms).labels}
    if not any(entity.get("shard") for entity in entities):
        tables, sessions = {}, {}
    else:
        tables = {n: _table(view, e.replace("$window", window), at_ms, label) for n, (label, e) in _TABLES.items()}
        asked = {n: e.replace("$window", window) for n, e in _SESSIONS.items()}
        sessions = {name: _table(view, expr, at_ms, "session_class") for name, expr in asked.items()}
    return [_pool(entity, system.get(entity, ""), numbers, tables, sessions) for entity in entities]


def _estimate() -> str:
    from playbooks.terms import expand  # half a block of each request stays empty: one definition for all

    return expand("$tail_waste")


Tables = Mapping[str, Mapping[Labels, Shares]]


def _pool(
    entity: Labels,
    system: str,
    numbers: Mapping[str, Mapping[Labels, Sequence[float]]],
    tables: Tables,
    sessions: Tables,
) -> Pool:
    values = {name: grid[entity][-1] for name, grid in numbers.items() if entity in grid}
    of = {name: table.get(entity, {}) for name, table in tables.items()}
    return Pool(
        entity,
        system,
        cells=_cells(of.get("map", {})),
        cell_blocks=values.get("cell_blocks"),
        states=of.get("states", {}),
        runs=of.get("runs", {}),
        slots=of.get("slots", {}),
        evicted=of.get("evicted", {}),
        refused=of.get("refused", {}),
        numbers={name: value for name, value in values.items() if not math.isnan(value)},
        sessions=_classes({name: table.get(entity, {}) for name, table in sessions.items()}),
    )


def _cells(found: Shares) -> tuple[int, ...]:
    known = frozenset(Cell)
    ordered = sorted((key for key in found if key.isdecimal()), key=int)
    return tuple(int(found[key]) if found[key] in known else UNKNOWN for key in ordered)


def _classes(of: Mapping[str, Shares]) -> tuple[SessionClass, ...]:
    names = sorted({name for values in of.values() for name in values})
    return tuple(SessionClass(name, **{field: values.get(name) for field, values in of.items()}) for name in names)


def _table(view: Asked, expr: str, at_ms: int, label: str) -> dict[Labels, Shares]:
    """Entity to a label's values to numbers, at one moment."""
    answer = view.instant(expr, at_ms)
    found: dict[Labels, dict[str, float]] = {}
    rows = zip(answer.labels, answer.values.tolist(), answer.present.tolist(), strict=True)
    for labels, values, present in rows:
        if present[-1] and math.isfinite(values[-1]):
            found.setdefault(entity_of(labels), {})[labels.get(label)] = values[-1]
    return dict(found)
