"""From a view and a moment to rows, fleet and trails: every panel asked once a tick, and never twice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

from probes.labels import Labels
from tui.fleet import fleet, pooled, sound
from tui.panels import CHARTED, PANELS, Merge, Of, Panel
from tui.quantity import age
from tui.reading import (
    FLEET,
    Asked,
    EntityReading,
    Grid,
    Moment,
    Reading,
    State,
    ages,
    ask,
    ask_range,
    assemble,
    duration,
    identities,
    last_ages,
    last_words,
    mixed,
    of_one_kind,
    presence,
    recalled,
    restarted,
)
from tui.trail import History, Key, Trail
from tui.vocabulary import vocabulary
from tui.windows import filled, stretches

_TERMS_A_TICK = 5
_IDENTITY_TICKS = 10


class Observer:
    """Follows a cursor: steps that lie ahead are appended, anything else is asked anew over the charts' span."""

    def __init__(self, view: Asked, interval_ms: int, window_ms: int, span_ms: int) -> None:
        self.view, self.interval_ms, self.window_ms, self.span_ms = view, interval_ms, window_ms, span_ms
        self._history = History(span_ms)
        self._grids: dict[str, Grid] = {}
        self._over_all: dict[str, Grid] = {}
        self._known: dict[Labels, int] = {}
        self._identities: dict[Labels, Mapping[str, str]] = {}
        self._seen: dict[str, frozenset[str]] = {}
        self._heard: dict[str, int] = {}
        self._last_words: dict[int, dict[str, Grid]] = {}
        self._looked_up: set[str] = set()
        self._turn = 0
        self._ticks = 0

    @property
    def seen(self) -> Mapping[str, frozenset[str]]:
        """Canonical name to the instances that have ever shown it."""
        return self._seen

    def observe(
        self,
        at_ms: int,
        start_ms: int,
        faults: Mapping[str, str],
        *,
        live: bool = False,
        cut: frozenset[str] = frozenset(),
    ) -> tuple[tuple[EntityReading, ...], EntityReading]:
        """The readings at a moment; data begins at ``start_ms``; ``faults`` maps instances to their source's fault.

        ``live``: what changes slowly need not be asked at every tick; ``cut``: instances whose recording is cut off.
        """
        with getattr(self.view, "sharing", nullcontext)():
            return self._observe(at_ms, start_ms, faults, live=live, cut=cut)

    def _observe(
        self, at_ms: int, start_ms: int, faults: Mapping[str, str], *, live: bool, cut: frozenset[str]
    ) -> tuple[tuple[EntityReading, ...], EntityReading]:
        times = self._steps(at_ms, start_ms)
        if times:
            self._ask(times, start_ms, frozenset(faults), lazy=live and len(times) == 1)
            self._learn(at_ms)
        faults = {**self._down(at_ms), **faults}
        moment = Moment(
            self._ages(at_ms, faults),
            faults,
            self._seen,
            restarted(self.view, at_ms, duration(self.window_ms)),
            self._identities,
            mixed(self.view, at_ms, duration(self.window_ms)),
            cut,
        )
        found = assemble(self._recalled(faults, start_ms), PANELS, moment, self._known)
        rows = tuple(self._with_last(row, at_ms, faults.get(row.labels.get("instance", ""), "")) for row in found)
        return rows, fleet(rows, PANELS, self._over_all)

    def _ages(self, at_ms: int, faults: Mapping[str, str]) -> dict[str, float]:
        """Instance to the age (s) of its last good scrape; of one that is down, remembered or looked up."""
        found = ages(self.view, at_ms)
        self._heard = {instance: ms for instance, ms in self._heard.items() if ms <= at_ms}
        lost = [instance for instance in faults if instance not in found and instance not in self._heard]
        if lost and self._looked_up != (self._looked_up | set(lost)):
            self._looked_up |= set(lost)
            self._heard |= {
                i: at_ms - round(s * 1000) for i, s in last_ages(self.view, at_ms, self.interval_ms).items()
            }
        self._heard |= {instance: at_ms - round(age_s * 1000) for instance, age_s in found.items()}
        return {**{i: (at_ms - self._heard[i]) / 1000 for i in faults if i in self._heard}, **found}

    def _recalled(self, faults: Mapping[str, str], start_ms: int) -> Mapping[str, Grid]:
        """The grids, of silent instances with the windowed numbers of when they were last heard (asked once)."""
        heard = {instance: self._heard[instance] for instance in faults if instance in self._heard}
        self._last_words = {ms: words for ms, words in self._last_words.items() if ms in heard.values()}
        grids = self._grids
        for instance, ms in heard.items():
            if ms not in self._last_words:
                self._last_words[ms] = last_words(self.view, PANELS, ms, self.window_at(ms, start_ms))
            grids = recalled(grids, self._last_words[ms], instance)
        return grids

    def trails(self) -> dict[Key, Trail]:
        """History of every charted panel, for each engine and for the fleet (no labels)."""
        return self._history.freeze()

    def _steps(self, at_ms: int, start_ms: int) -> range:
        """The moments to ask for: those since the last tick, or the whole span after a jump."""
        end = self._history.end_ms
        if end == at_ms:
            return range(0)
        if end is None or at_ms < end or at_ms - end > self.span_ms:
            self._history.clear()
            self._heard.clear()
            self._looked_up.clear()
            self._known.clear()
            self._grids.clear()
            end = max(start_ms, at_ms - self.span_ms) - 1
        count = max(0, (at_ms - end - 1) // self.interval_ms)
        return range(at_ms - count * self.interval_ms, at_ms + 1, self.interval_ms)

    def window_at(self, at_ms: int, start_ms: int) -> int:
        """The window (ms) in use at a moment: shorter while the data is young."""
        return filled(at_ms - start_ms, self.interval_ms, self.window_ms)

    def _ask(self, times: range, start_ms: int, silent: frozenset[str], *, lazy: bool) -> None:
        """Ask every panel that is due; the trails of ``silent`` instances end: nothing is known of them now."""
        due = [panel for panel in PANELS if not (lazy and self._is_early(panel))]
        for panel in due:
            grid = self._grids[panel.name] = self._grid(panel, times, start_ms)
            self._known.update((entity, times[-1]) for entity in grid if entity.get("instance"))
        for panel in due:
            if panel.merge is Merge.EXPR:
                self._over_all[panel.name] = self._over(panel, times, start_ms)
        answers = [(name, _without(self._grids[name], silent)) for name in CHARTED]
        answers += [(panel.name, {FLEET: self._merged(panel, len(times))}) for panel in PANELS if panel.name in CHARTED]
        self._history.append(times, answers)
        self._forget(times[-1])

    def _is_early(self, panel: Panel) -> bool:
        """Whether a panel need not be asked at this tick: it changes slowly, or there is no shard to have it."""
        if panel.name not in self._grids:
            return False
        if panel.of is Of.SHARD and not any(entity.get("shard") for entity in self._known):
            return True
        return self._ticks % panel.every != 0

    def _over(self, panel: Panel, times: range, start_ms: int) -> Grid:
        """A panel's answers over all entities; over a single one they are its own, and need not be asked for."""
        grid = self._grids[panel.name]
        if len(grid) > 1:
            return self._grid(panel, times, start_ms, over_all=True)
        return dict(zip((FLEET,), grid.values(), strict=False))

    def _grid(self, panel: Panel, times: range, start_ms: int, *, over_all: bool = False) -> Grid:
        """A panel's answers, one a step; the window is as long as the data allows."""
        parts = [(self.window_ms, times)]
        if panel.windowed:
            if times[-1] <= start_ms:  # a single sample: no rate yet, and a first picture that need not wait for one
                return {}
            parts = list(stretches(times, start_ms, self.interval_ms, self.window_ms))
        grids = [
            (ask_range(self.view, panel.at(duration(window), fleet=over_all), run[0], run[-1], run.step), len(run))
            for window, run in parts
        ]
        return grids[0][0] if len(grids) == 1 else _joined(grids)

    def _merged(self, panel: Panel, count: int) -> tuple[float, ...]:
        """The fleet's values, one a step."""
        grid = of_one_kind(self._grids[panel.name])
        if panel.merge is Merge.EXPR:
            over_all = self._over_all.get(panel.name, {}).get(FLEET, (math.nan,) * count)
            return tuple(_sound(over_all[step], grid, step) for step in range(count))
        return tuple(self._merged_at(panel, grid, step) for step in range(count))

    def _merged_at(self, panel: Panel, grid: Grid, step: int) -> float:
        values = [column[step] for column in grid.values() if not math.isnan(column[step])]
        if not values:
            return math.nan
        if panel.merge is Merge.TOKENS:
            tokens = self._grids.get("kv:pool_tokens", {})
            share = pooled(
                (_known(column[step]), _known(_newest(tokens.get(entity)))) for entity, column in grid.items()
            )
            return math.nan if share is None else share
        return max(values) if panel.merge is Merge.MAX else math.fsum(values)

    def _forget(self, at_ms: int) -> None:
        for entity, last in list(self._known.items()):
            if last < at_ms - self.span_ms:
                del self._known[entity]

    def _learn(self, at_ms: int) -> None:
        """Which families are there: all on the first tick, then a few a tick in turn."""
        names = list(vocabulary())
        due: Iterable[str] = names
        if self._seen:
            every = self._seen.get("kv:up", frozenset()) | {entity.get("instance") for entity in self._known}
            turn = (names[(self._turn + i) % len(names)] for i in range(_TERMS_A_TICK))
            due = [name for name in turn if not every or not self._seen.get(name, frozenset()) >= every]
            self._turn += _TERMS_A_TICK
        for name, instances in presence(self.view, at_ms, self.window_ms, due).items():
            self._seen[name] = self._seen.get(name, frozenset()) | instances
        if self._ticks % _IDENTITY_TICKS == 0:
            self._identities.update(identities(self.view, at_ms))
        self._ticks += 1

    def _down(self, at_ms: int) -> dict[str, str]:
        """Instances whose latest scrape failed, as the data itself says (``up``)."""
        grid = ask(self.view, "max by (instance) (kv:up) == 0", at_ms)
        return {entity.get("instance"): "the latest scrape failed" for entity in grid}

    def _with_last(self, row: EntityReading, at_ms: int, fault: str) -> EntityReading:
        """What a row had before: under a fault its last value with its age, else a gap."""
        values = dict(row.values)
        heard_ms = self._heard_ms(row.key)
        for name, reading in row.values.items():
            last = self._history.last((name, row.key)) if reading.value is None else None
            if last is None:
                continue
            age_s = (at_ms - last[0]) / 1000
            if fault:
                heard = self._heard.get(row.labels.get("instance", ""), heard_ms or last[0])
                values[name] = Reading(last[1], reading.unit, State.STALE, (at_ms - heard) / 1000, fault)
            elif reading.state is State.NOT_YET_SEEN:
                values[name] = replace(reading, state=State.GAP, why=f"no sample for {age(age_s)}")
        return replace(row, values=values)

    def _heard_ms(self, entity: Labels) -> int | None:
        """When an entity last gave a sample: by its gauges, which end with their source."""
        lasts = [self._history.last((panel.name, entity)) for panel in PANELS if not panel.windowed]
        return max((last[0] for last in lasts if last is not None), default=None)


def _without(grid: Grid, silent: frozenset[str]) -> Grid:
    """The grid less the rows of some instances."""
    if not silent:
        return grid
    return {entity: column for entity, column in grid.items() if entity.get("instance") not in silent}


def _joined(grids: Sequence[tuple[Grid, int]]) -> Grid:
    """Grids of runs of steps, one after the other; a row that one of them lacks is NaN there."""
    rows = dict.fromkeys(entity for grid, _ in grids for entity in grid)
    return {
        entity: tuple(value for grid, count in grids for value in grid.get(entity, (math.nan,) * count))
        for entity in rows
    }


def _sound(value: float, grid: Grid, step: int) -> float:
    parts = [column[step] for column in grid.values() if not math.isnan(column[step])]
    found = sound(value, parts) if parts else None
    return math.nan if found is None else found


def _newest(column: tuple[float, ...] | None) -> float:
    return column[-1] if column else math.nan


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
