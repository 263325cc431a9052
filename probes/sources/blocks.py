"""Samples laid out as blocks: one time axis per (job, instance), as the scrapes that they came from had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from probes.columns import ABSENT, STALE, Floats, Mask, Times, blank, is_absent
from probes.exposition import Family
from probes.labels import Labels
from probes.records import dataclass
from probes.sources.blanks import Blanks
from probes.sources.info import InfoLabels
from probes.sources.resets import FELL, MIXED, falls_of, mixed_columns

CHANGED = "kvscope_scrape_samples_changed"
_SYNTHETIC = ("up", "scrape_", "kvscope_")
MAX_CELLS = 50_000_000
"""Largest block, series times columns (400 MB); series that come and go make it much larger than its samples."""
_JITTER = 0.99  # a sample up to 1 % of its step early is not yet missing


@dataclass(frozen=True, slots=True)
class Block:
    """The series of one (job, instance) on one time axis: ``values[s, t]`` with ABSENT and STALE in the holes."""

    job: str
    instance: str
    labels: list[Labels]
    times: Times
    values: Floats
    dropped: int = 0
    """Samples left out because the block would have been too large; the newest columns stay."""
    clashes: int = 0
    """Samples left out because the same series has another value at the same time."""
    trouble: str = ""
    """What is to be said of the process behind the counters (see ``Resets.words``)."""

    @property
    def step_ms(self) -> int:
        """Median distance of two columns; 0 where there is only one."""
        return int(np.median(np.diff(self.times))) if len(self.times) > 1 else 0


def blocks_of(
    named: Sequence[Labels],
    series: Times,
    stamps: Times,
    values: Floats,
    info: InfoLabels,
    families: Mapping[str, Family] | None = None,
) -> Iterator[Block]:
    """Group samples in any order: sample i is ``values[i]`` of ``named[series[i]]`` at ``stamps[i]`` ms.

    Leaves out what is no measurement (see ``Blanks``), and counters where several processes take turns in them (see
    ``Resets``; ``families`` tells which are counters). Adds the gauges derived from info metrics, what a scrape says of
    itself where it is not there, and staleness markers where a series misses its step.
    """
    real = ~Blanks(named).among(series, values)
    if not real.all():
        series, stamps, values = series[real], stamps[real], values[real]
    groups: dict[tuple[str, str], list[int]] = {}
    for at, labels in enumerate(named):
        groups.setdefault((labels.get("job"), labels.get("instance")), []).append(at)
    group_of = np.zeros(len(named), dtype=np.int64)
    place = np.zeros(len(named), dtype=np.int64)
    for g, members in enumerate(groups.values()):
        group_of[members] = g
        place[members] = np.arange(len(members))
    order = np.argsort(group_of[series], kind="stable") if len(groups) > 1 else np.arange(len(series))
    bounds = np.searchsorted(group_of[series][order], np.arange(len(groups) + 1))
    for g, ((job, instance), members) in enumerate(groups.items()):
        mine = order[bounds[g] : bounds[g + 1]]
        if not len(mine):
            continue
        held = mine[stamps[mine] >= _start(len(members), stamps[mine])]
        used, rows = np.unique(place[series[held]], return_inverse=True)
        times, grid, clashes = _grid(len(used), rows, stamps[held], values[held])
        block = _complete(job, instance, [named[members[at]] for at in used], times, grid, info, families or {})
        yield replace(block, dropped=len(mine) - len(held), clashes=clashes)


def _start(count: int, times: Times) -> int:
    """The oldest time at which ``count`` series still fit into ``MAX_CELLS``."""
    axis = np.unique(times)
    return int(axis[-min(len(axis), max(1, MAX_CELLS // count))])


def _grid(count: int, rows: Times, times: Times, values: Floats) -> tuple[Times, Floats, int]:
    """Samples in any order as ``[count, T]``; of two samples at one time the first stands, as in Prometheus.

    Also how many of those left out say something else than the first.
    """
    axis, column = np.unique(times, return_inverse=True)
    cells = rows * len(axis) + column
    found, first = np.unique(cells, return_index=True)
    grid = blank(count * len(axis))
    grid[found] = values[first]
    clashes = 0
    if len(found) < len(cells):
        clashes = int(np.count_nonzero((grid[cells] != values) & ~(np.isnan(grid[cells]) & np.isnan(values))))
    return axis, grid.reshape(count, len(axis)), clashes


def _complete(
    job: str,
    instance: str,
    labels: list[Labels],
    times: Times,
    values: Floats,
    info: InfoLabels,
    families: Mapping[str, Family],
) -> Block:
    extra: dict[Labels, Floats] = {}
    trouble = ""
    if not any(one.name in (FELL, MIXED) for one in labels):
        marks, trouble = _resets(labels, times, values, families)
        extra |= {Labels.of({"job": job, "instance": instance}, name=name): marked for name, marked in marks.items()}
    present = ~is_absent(values)
    if not any(one.name == CHANGED for one in labels):
        changed = _changed(labels, values, present)
        if changed is not None:
            extra[Labels.of({"job": job, "instance": instance}, name=CHANGED)] = changed
    known = set(labels)
    for row, one in enumerate(labels):
        for derived, constant in info.derive(one):
            if derived not in known:
                column = np.where(present[row] & (values[row] != 0), constant, ABSENT)
                before = extra.get(derived)
                extra[derived] = column if before is None else np.where(is_absent(before), column, before)
    values = _mark_stale(times, values, present)
    if extra:
        more = np.array(list(extra.values()))
        values = np.vstack([values, _mark_stale(times, more, ~is_absent(more))])
    return Block(job, instance, [*labels, *extra], times, values, trouble=trouble)


def _resets(
    labels: list[Labels], times: Times, values: Floats, families: Mapping[str, Family]
) -> tuple[dict[str, Floats], str]:
    """What ``Resets`` finds in the counters, as series and in words; takes those of several processes out."""
    rows, fell = falls_of([one.name for one in labels], values, families)
    if not fell.any():
        return {}, ""
    marks = {FELL: np.where(fell > 0, fell.astype(np.float64), ABSENT)}
    mixed, trouble = mixed_columns(times, values[rows])
    if mixed.any():
        values[np.ix_(rows, np.flatnonzero(mixed))] = ABSENT
        marks[MIXED] = np.where(mixed, 1.0, ABSENT)
    return marks, trouble


def _changed(labels: list[Labels], values: Floats, present: Mask) -> Floats | None:
    """Per step, how many samples differ from the last step that had any (a new series differs); the first has none."""
    own = np.array([not one.name.startswith(_SYNTHETIC) for one in labels])
    held = present[own]
    columns = np.flatnonzero(held.any(axis=0))
    if not len(columns):
        return None
    now = values[own][:, columns]
    here = held[:, columns]
    same = (now[:, 1:] == now[:, :-1]) | (np.isnan(now[:, 1:]) & np.isnan(now[:, :-1]))
    differs = here[:, 1:] & ~(same & here[:, :-1])
    out = blank(values.shape[1])
    out[columns[1:]] = differs.sum(axis=0)
    return out


def _mark_stale(times: Times, values: Floats, present: Mask) -> Floats:
    """Put a staleness marker where a series first misses its own step, as a scrape without it would have."""
    holes = present[:, :-1] & ~present[:, 1:]
    for row in np.flatnonzero(holes.any(axis=1)):
        own = np.flatnonzero(present[row])
        step = float(np.median(np.diff(times[own]))) if len(own) > 1 else 0.0
        for at in np.flatnonzero(holes[row]):
            due = int(np.searchsorted(times, times[at] + step * _JITTER))
            due = max(due, int(at) + 1)
            if due < len(times) and not present[row, at + 1 : due + 1].any():
                values[row, due] = STALE
    return values
