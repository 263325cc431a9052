"""Readings: what each panel says about each entity, with its state. No textual here; `kvtop once` uses it too.

    read(view, at_ms, window_ms, panels=PANELS, *, faults=None, seen=None, asked=None, start_ms=None,
         cut=frozenset())
        -> list[EntityReading]

- ``view``: a `probes.view.View`, or what answers like one (see `Asked`); ``at_ms``: milliseconds since the epoch;
  ``window_ms``: length of ``$window``.
- ``faults``: instance to the fault of its source in words, for sources that are not fresh.
- ``seen``: canonical name to the instances that ever had it (`presence` finds it when not given).
- ``start_ms``: where the data begins; no window of a silent instance then reaches back beyond it.
- ``cut``: instances whose recording is cut off: a family that is not there may have been.
- ``asked``: of ``panels`` those that can have an answer, where that is known (all of them when not given).
- Answer: one `EntityReading(labels, values)` an entity; ``values`` maps a panel's name (a ``kv:*`` name) to a
  `Reading(value, unit, state, age_s)`. ``as_json(at_ms, readings)`` is the document of `kvtop once --json`.

Missing is never 0: no value is None with a state that says why. NaN is no data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Protocol

from probes.labels import Labels
from probes.records import dataclass
from tui.names import entity_name, names_apart
from tui.panels import PANELS, Merge, Of, Panel
from tui.vocabulary import vocabulary

_DIGITS = re.compile(r"(\d+)")
SCHEMA = "kvscope.reading/1"

# An engine's identity on the screen: these labels, as far as present; shard, GPU and device come before.
_ENTITY_LABELS = (
    ("shard", "instance"),
    ("gpu", "instance"),
    ("device", "instance"),
    ("instance", "engine"),
    ("instance",),
)
_IDENTITY = ("model_name", "system", "job")
FLEET = Labels.of({})
# Of anything but a plain series, timestamp() is the moment asked for.
_GOOD = "timestamp(kv:up) and (kv:up == 1)"


class State(StrEnum):
    """How a value stands (design: values have states)."""

    FRESH = "fresh"
    STALE = "stale"
    GAP = "gap"
    RESET = "reset"
    UNSUPPORTED = "unsupported"
    NO_PERMISSION = "no-permission"
    NOT_YET_SEEN = "not-yet-seen"


@dataclass(frozen=True, slots=True)
class Reading:
    """One number: ``value`` None is no data, never 0; ``age_s`` is the age of its newest input; ``why`` in words."""

    value: float | None
    unit: str
    state: State
    age_s: float | None = None
    why: str = ""

    def as_json(self) -> dict[str, object]:
        return {"value": self.value, "unit": self.unit, "state": self.state.value, "age_s": self.age_s}


@dataclass(frozen=True, slots=True)
class EntityReading:
    """All readings of one entity, by panel name; ``called``: what it is called beside those like it."""

    labels: Mapping[str, str]
    values: Mapping[str, Reading] = field(default_factory=dict)
    called: str = ""
    key: Labels = field(init=False, compare=False, repr=False)
    """Its identity: the entity's own labels, without model or job."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", entity_of(Labels.of(self.labels)))

    @property
    def name(self) -> str:
        return self.called or entity_name(self.labels)

    @property
    def stale(self) -> bool:
        """Whether its source is silent."""
        return any(reading.state is State.STALE for reading in self.values.values())

    def value(self, panel: str) -> float | None:
        reading = self.values.get(panel)
        return None if reading is None else reading.value


class Answer(Protocol):
    """A vector over steps: S label sets, K times, ``values`` and ``present`` are ``[S, K]``."""

    @property
    def labels(self) -> Sequence[Labels]: ...
    @property
    def times(self) -> Any: ...
    @property
    def values(self) -> Any: ...
    @property
    def present(self) -> Any: ...


class Asked(Protocol):
    """What this module needs of a view."""

    def instant(self, text: str, at_ms: int, /) -> Any: ...

    def range(self, text: str, start_ms: int, end_ms: int, step_ms: int, /) -> Any: ...


Grid = Mapping[Labels, tuple[float, ...]]
"""Entity to one value a step; NaN where there is none."""


class Sent(float):
    """A sample that came and is no number: NaN or infinite. A plain NaN in a grid is no sample."""


NOT_A_NUMBER = Sent("nan")


@lru_cache(maxsize=8192)
def entity_of(labels: Labels) -> Labels:
    """The entity that a series belongs to: its first label set present."""
    for names in _ENTITY_LABELS:
        if all(labels.get(name) for name in names):
            return labels.only(names)
    return FLEET


def duration(window_ms: int) -> str:
    """A PromQL duration."""
    return f"{window_ms // 1000}s" if window_ms % 1000 == 0 else f"{window_ms}ms"


def grid_of(answer: Answer) -> Grid:
    """A vector as plain floats by entity; two series of one entity: the first that has a value wins."""
    found: dict[Labels, tuple[float, ...]] = {}
    values, present = answer.values.tolist(), answer.present.tolist()
    for labels, row, there in zip(answer.labels, values, present, strict=True):
        entity = entity_of(labels)
        column = tuple(_cell(v, p) for v, p in zip(row, there, strict=True))
        known = found.get(entity)
        if known is not None:
            column = tuple(b if math.isnan(a) else a for a, b in zip(known, column, strict=True))
        found[entity] = column
    return found


def _cell(value: float, there: bool) -> float:
    return (value if math.isfinite(value) else NOT_A_NUMBER) if there else math.nan


def ask(view: Asked, expr: str, at_ms: int) -> Grid:
    """One instant query as a grid of one step."""
    return grid_of(view.instant(expr, at_ms))


def ask_range(view: Asked, expr: str, start_ms: int, end_ms: int, step_ms: int) -> Grid:
    """One range query as a grid; steps end at ``end_ms`` at the latest."""
    return grid_of(view.range(expr, start_ms, end_ms, step_ms))


def presence(view: Asked, at_ms: int, window_ms: int, names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Canonical name to the instances that have had a sample of it within the window (at least five minutes)."""
    terms = vocabulary()
    span_ms = max(window_ms, 300_000)
    look_up = getattr(view, "instances", None)
    found: dict[str, frozenset[str]] = {}
    for name in dict.fromkeys(names):
        series = terms[name].series if name in terms else name
        known = look_up(series, at_ms, span_ms) if look_up else None
        if known is None:
            answer = view.instant(f"count by (instance) (last_over_time({series}[{duration(span_ms)}]))", at_ms)
            known = frozenset(labels.get("instance") for labels in answer.labels)
        found[name] = known
    return found


def read(
    view: Asked,
    at_ms: int,
    window_ms: int,
    panels: Sequence[Panel] = PANELS,
    *,
    faults: Mapping[str, str] | None = None,
    seen: Mapping[str, frozenset[str]] | None = None,
    asked: Sequence[Panel] | None = None,
    start_ms: int | None = None,
    cut: frozenset[str] = frozenset(),
) -> list[EntityReading]:
    """Every panel for every entity at one moment (see the module's text)."""
    with getattr(view, "sharing", nullcontext)():
        due = panels if asked is None else asked
        return _read(view, at_ms, window_ms, panels, faults or {}, seen, due, start_ms, cut)


def _read(
    view: Asked,
    at_ms: int,
    window_ms: int,
    panels: Sequence[Panel],
    faults: Mapping[str, str],
    seen: Mapping[str, frozenset[str]] | None,
    asked: Sequence[Panel],
    start_ms: int | None,
    cut: frozenset[str],
) -> list[EntityReading]:
    window = duration(window_ms)
    known_ages = ages(view, at_ms)
    if faults and not faults.keys() <= known_ages.keys():
        known_ages = {**last_ages(view, at_ms, window_ms // 4 or 1000), **known_ages}
    grids = {panel.name: ask(view, panel.at(window), at_ms) for panel in asked}
    for instance in faults.keys() & known_ages.keys():
        heard_ms = at_ms - round(known_ages[instance] * 1000)
        held_ms = window_ms if start_ms is None else min(window_ms, heard_ms - start_ms)
        grids = recalled(grids, last_words(view, asked, heard_ms, held_ms), instance)
    if seen is None:
        seen = presence(view, at_ms, window_ms, (need for panel in panels for need in panel.needs))
    moment = Moment(
        known_ages,
        faults,
        seen,
        restarted(view, at_ms, window),
        identities(view, at_ms),
        mixed(view, at_ms, window),
        cut,
    )
    return assemble(grids, panels, moment)


@dataclass(frozen=True, slots=True)
class Moment:
    """What the state of a reading rests on, by instance: age of the newest sample, fault, families seen, restarts,
    whether several processes answer in turn, and whether its recording is cut off (families may be missing)."""

    ages: Mapping[str, float] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, frozenset[str]] = field(default_factory=dict)
    restarted: frozenset[str] = frozenset()
    identities: Mapping[Labels, Mapping[str, str]] = field(default_factory=dict)
    mixed: frozenset[str] = frozenset()
    cut: frozenset[str] = frozenset()


def identities(view: Asked, at_ms: int) -> dict[Labels, Mapping[str, str]]:
    """Entity to the labels that say what it is: model, system, job."""
    answer = view.instant("kv:requests_running or kv:pool_usage_ratio", at_ms)
    return {entity_of(labels): labels.only(_IDENTITY).as_dict() for labels in answer.labels}


def ages(view: Asked, at_ms: int) -> dict[str, float]:
    """Instance to the age (s) of its newest sample: its last good scrape, else (no ``up``) its own gauges."""
    found: dict[str, float] = {}
    for times in (_GOOD, "timestamp(kv:requests_running)"):
        for entity, column in ask(view, f"max by (instance) ({times})", at_ms).items():
            if column and not math.isnan(column[-1]):
                found[entity.get("instance")] = max(0.0, at_ms / 1000 - column[-1])
        if found:
            break
    return found


def last_ages(view: Asked, at_ms: int, step_ms: int) -> dict[str, float]:
    """Instance to the age (s) of its last good scrape within a quarter of an hour, be it down since."""
    expr = f"max by (instance) (max_over_time(({_GOOD})[15m:{duration(step_ms)}]))"
    grid = ask(view, expr, at_ms)
    return {e.get("instance"): max(0.0, at_ms / 1000 - c[-1]) for e, c in grid.items() if not math.isnan(c[-1])}


def last_words(view: Asked, panels: Sequence[Panel], heard_ms: int, window_ms: int) -> dict[str, Grid]:
    """What the windowed panels said when a source was last heard: from then on its window empties, and a rate over it
    falls without anything having changed."""
    windowed = [panel for panel in panels if panel.windowed]
    if window_ms <= 0:
        return {panel.name: {} for panel in windowed}
    return {panel.name: ask(view, panel.at(duration(window_ms)), heard_ms) for panel in windowed}


def recalled(grids: Mapping[str, Grid], words: Mapping[str, Grid], instance: str) -> dict[str, Grid]:
    """The grids with one instance's rows as ``words`` have them."""
    found = dict(grids)
    for name, grid in words.items():
        others = {
            entity: column for entity, column in found.get(name, {}).items() if entity.get("instance") != instance
        }
        found[name] = others | {entity: column for entity, column in grid.items() if entity.get("instance") == instance}
    return found


def restarted(view: Asked, at_ms: int, window: str) -> frozenset[str]:
    """Instances whose process started anew within the window: its start time changed, or a counter fell."""
    started = ask(view, f"max by (instance) (changes(kv:process_start_time_seconds[{window}])) > 0", at_ms)
    fell = ask(view, f"max by (instance) (last_over_time(kvscope_counters_fell[{window}]))", at_ms)
    return frozenset(entity.get("instance") for entity in (*started, *fell))


def mixed(view: Asked, at_ms: int, window: str) -> frozenset[str]:
    """Instances at whose address several processes answered in turn within the window (`probes.sources.resets`)."""
    grid = ask(view, f"max by (instance) (last_over_time(kvscope_processes_mixed[{window}]))", at_ms)
    return frozenset(entity.get("instance") for entity in grid)


def assemble(
    grids: Mapping[str, Grid], panels: Sequence[Panel], moment: Moment, known: Iterable[Labels] = ()
) -> list[EntityReading]:
    """Entity readings from grids (their last step); instance-wide numbers go to each engine of the instance.

    ``known`` entities are there even when no grid has them any more.
    """
    entities = _entities(grids, known)
    readings = []
    for entity, called in zip(entities, names_apart([entity.as_dict() for entity in entities]), strict=True):
        values: dict[str, Reading] = {}
        kind = kind_of(entity)
        for panel in panels:
            newest = _newest(grids.get(panel.name, {}), entity)
            value = None if math.isnan(newest) else newest
            if value is not None or (panel.of in (kind, Of.BOTH) and kind and panel.merge is not Merge.NONE):
                values[panel.name] = _reading(panel, entity.get("instance"), newest, moment)
        readings.append(EntityReading({**moment.identities.get(entity, {}), **entity.as_dict()}, values, called))
    return readings


def _entities(grids: Mapping[str, Grid], known: Iterable[Labels]) -> list[Labels]:
    """All entities, sorted by name; a bare instance that has engines or a shard is no entity of its own."""
    every = dict.fromkeys([*(entity for grid in grids.values() for entity in grid), *known])
    ranked = {e.get("instance") for e in every if e.get("engine") or e.get("shard")}
    kept = [e for e in every if e and not (len(e) == 1 and e.get("instance") in ranked)]
    return sorted(kept, key=sort_key)


def sort_key(entity: Labels | Mapping[str, str]) -> tuple[object, ...]:
    """Instances by name, ranks and GPUs by number; then shards, by their own names."""
    shard = entity.get("shard")
    if shard:
        return (1, natural(shard), natural(entity.get("instance") or ""), str(entity))
    rank = entity.get("engine") or entity.get("gpu") or ""
    return (0, natural(entity.get("instance") or ""), int(rank) if rank.isdecimal() else -1, rank, str(entity))


def natural(text: str) -> tuple[object, ...]:
    """Numbers in a name count as numbers: ``pod-2`` before ``pod-10``."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _DIGITS.split(text) if part)


def kind_of(entity: Labels | Mapping[str, str]) -> Of | None:
    """Whether it is an engine or a store's shard; None for a GPU, a device, or the fleet."""
    if entity.get("shard"):
        return Of.SHARD
    return None if entity.get("gpu") or entity.get("device") or not entity.get("instance") else Of.ENGINE


def of_one_kind(grid: Grid) -> Grid:
    """The engines' rows where there are any, else all: engines and shards cannot be added up."""
    if not any(kind_of(entity) is Of.SHARD for entity in grid):
        return grid
    engines = {entity: column for entity, column in grid.items() if kind_of(entity) is Of.ENGINE}
    return engines or grid


def _newest(grid: Grid, entity: Labels) -> float:
    column = grid.get(entity)
    if column is None and (entity.get("engine") or entity.get("shard")):
        column = grid.get(entity.only(("instance",)))
    return column[-1] if column else math.nan


def _reading(panel: Panel, instance: str, newest: float, moment: Moment) -> Reading:
    age, fault = moment.ages.get(instance), moment.faults.get(instance, "")
    if panel.windowed and instance in moment.mixed and not fault:
        return Reading(None, panel.unit, State.RESET, None, "several processes answer at this address in turn")
    value = None if math.isnan(newest) else newest
    if value is not None:
        if fault:
            return Reading(value, panel.unit, State.STALE, age, fault)
        if panel.windowed and instance in moment.restarted:
            return Reading(value, panel.unit, State.RESET, age, "the process restarted within the window")
        return Reading(value, panel.unit, State.FRESH, age)
    state, why = _absence(panel, instance, moment, fault, sent=isinstance(newest, Sent))
    return Reading(None, panel.unit, state, None, why)


def _absence(panel: Panel, instance: str, moment: Moment, fault: str, *, sent: bool) -> tuple[State, str]:
    if "permission" in fault:
        return State.NO_PERMISSION, fault
    missing = [need for need in panel.needs if instance not in moment.seen.get(need, frozenset())]
    if fault and (not missing or not any(instance in known for known in moment.seen.values())):
        return State.GAP, fault
    if missing and instance in moment.cut:
        return State.NOT_YET_SEEN, "the recording is cut off: this may have stood behind the cut"
    if missing:
        return State.UNSUPPORTED, f"{instance} has no {', '.join(missing)}"
    if panel.windowed and panel.unit in ("ratio", "seconds"):
        return State.GAP, "nothing to measure within the window"
    if sent:
        return State.GAP, "what comes is no number (NaN or infinite)"
    if panel.windowed:
        return State.NOT_YET_SEEN, "needs two samples within the window"
    return State.GAP, "no sample now, though there was one"


def as_json(at_ms: int, readings: Sequence[EntityReading]) -> dict[str, object]:
    """The document of ``kvtop once --json``; ``time`` in Unix seconds."""
    return {
        "schema": SCHEMA,
        "time": at_ms / 1000,
        "entities": [
            {"labels": dict(r.labels), "values": {name: v.as_json() for name, v in r.values.items()}} for r in readings
        ],
    }
