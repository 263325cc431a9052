"""One row for all engines: sums are summed, ratios and quantiles asked anew over all, and nothing averaged wrongly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tui.panels import Merge, Of, Panel
from tui.reading import FLEET, EntityReading, Grid, Reading, State, kind_of

_SLACK = 0.02  # interpolation within one bucket differs a little between one engine and all
WORST = "the engines' buckets differ and cannot be added up: this is the worst engine's"


def fleet(readings: Sequence[EntityReading], panels: Sequence[Panel], asked: Mapping[str, Grid]) -> EntityReading:
    """The fleet's row; ``asked`` holds the grids of the fleet expressions by panel name (their last step).

    Engines whose values are stale count only where no other tells of the panel: what a silent engine did last is no
    part of what the fleet does now, even if the others do nothing at all. Where there are engines, a store's shards do
    not count beside them.
    """
    values = {}
    engines = [row for row in readings if kind_of(row.key) is not Of.SHARD]
    for panel in panels:
        if panel.merge is Merge.NONE:
            continue
        whose = engines if engines and panel.of is Of.BOTH else readings
        answering = [row for row in whose if not row.stale]
        rows = answering if any(_tells(row, panel) for row in answering) else whose
        parts = [row.values[panel.name] for row in rows if panel.name in row.values]
        if not parts:
            continue
        value = _merged(panel, rows, parts, asked.get(panel.name, {}))
        values[panel.name] = _fleet_reading(panel, parts, value)
        many = sum(part.value is not None for part in parts) > 1
        if panel.merge is Merge.EXPR and many and value not in (None, _last_of(asked.get(panel.name, {}))):
            values[panel.name] = replace(values[panel.name], why=WORST)
    return EntityReading({}, values)


def _tells(row: EntityReading, panel: Panel) -> bool:
    """Whether it has a value, or would have one if there were anything to measure."""
    reading = row.values.get(panel.name)
    return reading is not None and (reading.value is not None or reading.state is State.GAP)


def _merged(panel: Panel, rows: Sequence[EntityReading], parts: Sequence[Reading], grid: Grid) -> float | None:
    numbers = [part.value for part in parts if part.value is not None]
    if not numbers:
        return None
    if panel.merge is Merge.SUM:
        return math.fsum(numbers)
    if panel.merge is Merge.MAX:
        return max(numbers)
    if panel.merge is Merge.TOKENS:
        return pooled([(row.value(panel.name), row.value("kv:pool_tokens")) for row in rows])
    return sound(_last_of(grid), numbers)


def _last_of(grid: Grid) -> float | None:
    column = grid.get(FLEET, ())
    return None if not column or math.isnan(column[-1]) else column[-1]


def sound(value: float | None, parts: Sequence[float]) -> float | None:
    """A ratio or quantile over all engines, if it can be right.

    Over all, it lies between the least and the greatest of the engines' own. Where it does not, their histograms have
    different buckets and cannot be added up: the greatest is then the honest bound.
    """
    if len(parts) == 1:
        return parts[0]
    if value is None or math.isnan(value):
        return None
    low, high = min(parts), max(parts)
    return value if low * (1 - _SLACK) <= value <= high * (1 + _SLACK) else high


def pooled(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Used tokens over all tokens, from (usage ratio, capacity) of each pool; one pool needs no capacity.

    Several pools of which one has no known capacity cannot be merged: None, rather than a wrong mean.
    """
    known = [(usage, tokens) for usage, tokens in pairs if usage is not None]
    if len(known) == 1:
        return known[0][0]
    if not known or any(tokens is None for _, tokens in known):
        return None
    total = math.fsum(tokens for _, tokens in known if tokens is not None)
    return math.fsum(usage * tokens for usage, tokens in known if tokens is not None) / total if total > 0 else None


# Of several reasons for no value, the one that is nearest to a value speaks for the fleet.
_NEARNESS = (
    State.FRESH,
    State.RESET,
    State.STALE,
    State.NOT_YET_SEEN,
    State.GAP,
    State.NO_PERMISSION,
    State.UNSUPPORTED,
)


def _fleet_reading(panel: Panel, parts: Sequence[Reading], value: float | None) -> Reading:
    known = [part for part in parts if part.value is not None]
    ages = [part.age_s for part in known if part.age_s is not None]
    age = max(ages) if ages else None
    if value is None:
        if known:
            return Reading(None, panel.unit, State.GAP, None, "cannot be merged: a pool's capacity is not known")
        nearest = min(parts, key=lambda part: _NEARNESS.index(part.state))
        return Reading(None, panel.unit, nearest.state, None, nearest.why)
    stale = sum(part.state is State.STALE for part in known)
    if stale:
        return Reading(value, panel.unit, State.STALE, age, f"{stale} of {len(parts)} are stale")
    if any(part.state is State.RESET for part in known):
        return Reading(value, panel.unit, State.RESET, age, "a process restarted within the window")
    return Reading(value, panel.unit, State.FRESH, age)
