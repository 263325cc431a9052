"""A recording: an OpenMetrics file with timestamps, laid out as one block of columns a target."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from probes.columns import ABSENT, STALE, Floats, Mask, Times, blank, is_absent
from probes.exposition import ExpositionError, Family
from probes.labels import Labels
from probes.series import Metadata, SeriesStore
from probes.sources.base import SourceStatus
from probes.sources.info import InfoLabels, info_labels
from probes.sources.openmetrics import Samples, read_samples

CHANGED = "kvscope_scrape_samples_changed"
JOB = "recording"
LOAD_CAP = 20_000_000
"""Samples of one file that are held while it is read (24 bytes each); the newest stay (policy)."""
_SYNTHETIC = ("up", "scrape_", "kvscope_")
_JITTER = 0.99  # a sample up to 1 % of its step early is not yet missing


@dataclass(frozen=True, slots=True)
class Block:
    """The series of one (job, instance) on one time axis: ``values[s, t]`` with ABSENT and STALE in the holes."""

    job: str
    instance: str
    labels: list[Labels]
    times: Times
    values: Floats


@dataclass(frozen=True, slots=True)
class Recording:
    """A loaded file: its blocks, its metadata, and what is to be said about it."""

    path: Path
    blocks: tuple[Block, ...]
    families: dict[str, Family]
    samples: int
    bytes: int
    remark: str

    @property
    def start_ms(self) -> int:
        return min(int(block.times[0]) for block in self.blocks)

    @property
    def end_ms(self) -> int:
        return max(int(block.times[-1]) for block in self.blocks)

    @property
    def step_ms(self) -> int:
        """Median distance of two columns of the block with the most columns; 0 where there is only one."""
        longest = max(self.blocks, key=lambda block: len(block.times))
        return int(np.median(np.diff(longest.times))) if len(longest.times) > 1 else 0


def load(path: Path, *, cap: int = LOAD_CAP, info: InfoLabels | None = None) -> Recording:
    """Read a recording whole (see ``read_samples`` for the cap and the errors)."""
    samples = read_samples(path, cap=cap)
    stem = path.name.removesuffix(".gz").rsplit(".", 1)[0]
    blocks = tuple(_blocks(samples, stem, info or info_labels()))
    return Recording(path, blocks, samples.families, len(samples.series), samples.bytes, _remark(samples))


def _remark(samples: Samples) -> str:
    said = []
    if not samples.closed:
        tail = ", its last line was cut off and left out" if samples.cut else ""
        said.append(f"unclosed recording: no # EOF{tail}")
    if samples.dropped:
        said.append(f"too long to hold: the oldest {samples.dropped} samples were left out")
    return "; ".join(said)


def _blocks(samples: Samples, stem: str, info: InfoLabels) -> Iterator[Block]:
    named = [_with_target(labels, stem) for labels in samples.labels]
    groups: dict[tuple[str, str], list[int]] = {}
    for at, labels in enumerate(named):
        groups.setdefault((labels.get("job"), labels.get("instance")), []).append(at)
    group_of = np.zeros(len(named), dtype=np.int64)
    place = np.zeros(len(named), dtype=np.int64)
    for g, members in enumerate(groups.values()):
        group_of[members] = g
        place[members] = np.arange(len(members))
    order = np.argsort(group_of[samples.series], kind="stable") if len(groups) > 1 else np.arange(len(samples.series))
    bounds = np.searchsorted(group_of[samples.series][order], np.arange(len(groups) + 1))
    for g, ((job, instance), members) in enumerate(groups.items()):
        mine = order[bounds[g] : bounds[g + 1]]
        if not len(mine):
            continue
        rows = place[samples.series[mine]]
        times, values = _grid(len(members), rows, samples.times[mine], samples.values[mine])
        yield _complete(job, instance, [named[at] for at in members], times, values, info)


def _with_target(labels: Labels, stem: str) -> Labels:
    if labels.get("job") and labels.get("instance"):
        return labels
    return labels.replace(job=labels.get("job") or JOB, instance=labels.get("instance") or stem)


def _grid(count: int, rows: Times, times: Times, values: Floats) -> tuple[Times, Floats]:
    """Samples in any order as ``[count, T]``; of two samples at one time the first stands, as in Prometheus."""
    axis, column = np.unique(times, return_inverse=True)
    grid = blank((count, len(axis)))
    grid[rows[::-1], column[::-1]] = values[::-1]
    return axis, grid


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


class RecordingSource:
    """A file as a source: its samples are in the store from the start, and it has nothing to add later."""

    def __init__(self, target: str, path: Path, store: SeriesStore, *, cap: int = LOAD_CAP) -> None:
        self._target = target
        self.span: tuple[int, int] | None = None
        self.step_ms = 0
        self._status = self._load(path, store, cap)

    @property
    def target(self) -> str:
        return self._target

    @property
    def status(self) -> SourceStatus:
        return self._status

    async def collect(self, now_ms: int) -> SourceStatus:
        return self._status

    async def close(self) -> None:
        return None

    def _load(self, path: Path, store: SeriesStore, cap: int) -> SourceStatus:
        start = time.monotonic()
        status = SourceStatus(self._target, "fresh", kind="recording")
        try:
            found = load(path, cap=cap)
        except ExpositionError as error:
            return replace(status, state="not-exposition", error=str(error))
        except PermissionError:
            return replace(status, state="no-permission", error="the file may not be read")
        except OSError as error:
            return replace(status, state="gone", error=f"cannot be read: {(error.strerror or str(error)).lower()}")
        if not found.blocks:
            said = "; ".join(filter(None, ("the recording has no samples", found.remark)))
            return replace(status, state="empty", error=said, bytes=found.bytes)
        for block in found.blocks:
            frame = store.frame(f"{self._target} {block.job} {block.instance}")
            frame.load(block.times, block.labels, block.values)
        for family in found.families.values():
            kind = "unknown" if family.type == "untyped" else family.type
            store.set_metadata(family.name, Metadata(kind, family.help, family.unit))
        self.span = (found.start_ms, found.end_ms)
        self.step_ms = found.step_ms
        return replace(
            status,
            error=found.remark or None,
            time_ms=found.end_ms,
            last_ok_ms=found.end_ms,
            duration_s=time.monotonic() - start,
            samples=found.samples,
            bytes=found.bytes,
        )
