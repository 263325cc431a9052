"""Samples laid out as blocks: one time axis per (job, instance), as the scrapes that they came from had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from probes.columns import ABSENT, STALE, Floats, Mask, Times, blank, is_absent
from probes.labels import Labels
from probes.records import dataclass
from probes.sources.blanks import Blanks
from probes.sources.info import InfoLabels

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

    @property
    def step_ms(self) -> int:
        """Median distance of two columns; 0 where there is only one."""
        return int(np.median(np.diff(self.times))) if len(self.times) > 1 else 0


def blocks_of(
    named: Sequence[Labels], series: Times, stamps: Times, values: Floats, info: InfoLabels
) -> Iterator[Block]:
    """Group samples in any order: sample i is ``values[i]`` of ``named[series[i]]`` at ``stamps[i]`` ms.

    Leaves out what is no measurement (see ``Blanks``). Adds the gauges derived from info metrics,
    ``kvscope_scrape_samples_changed`` where it is not there, and staleness markers where a series misses its step.
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
        times, grid = _grid(len(used), rows, stamps[held], values[held])
        block = _complete(job, instance, [named[members[at]] for at in used], times, grid, info)
        yield replace(block, dropped=len(mine) - len(held))


def _start(count: int, times: Times) -> int:
    """The oldest time at which ``count`` series still fit into ``MAX_CELLS``."""
    axis = np.unique(times)
    return int(axis[-min(len(axis), max(1, MAX_CELLS // count))])


def _grid(count: int, rows: Times, times: Times, values: Floats) -> tuple[Times, Floats]:
    """Samples in any order as ``[count, T]``; of two samples at one time the first stands, as in Prometheus."""
    axis, column = np.unique(times, return_inverse=True)
    cells = rows * len(axis) + column
    found, first = np.unique(cells, return_index=True)
    grid = blank(count * len(axis))
    grid[found] = values[first]
    return axis, grid.reshape(count, len(axis))


def _complete(job: str, instance: str, labels: list[Labels], times: Times, values: Floats, info: InfoLabels) -> Block:
    present = ~is_absent(values)
    extra: dict[Labels, Floats] = {}
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
    return Block(job, instance, [*labels, *extra], times, values)


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
