"""A recording: an OpenMetrics file with timestamps, laid out as one block of columns a target."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from probes.exposition import ExpositionError, Family
from probes.labels import Labels
from probes.series import Frame, SeriesStore
from probes.sources.base import SourceStatus
from probes.sources.blocks import Block, blocks_of
from probes.sources.info import InfoLabels, info_labels
from probes.sources.ingest import declare
from probes.sources.openmetrics import Samples, read_samples

JOB = "recording"
LOAD_CAP = 10_000_000
"""Samples of one file that are held while it is read (24 bytes each); the newest stay (policy)."""
_FEW_CLASHES, _MOST_CLASHES = 3, 0.01
"""Number and share of samples that may contradict another of their series and time (policy: a glitch)."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A loaded file: its blocks, its metadata, and what is to be said about it."""

    path: Path
    blocks: tuple[Block, ...]
    families: dict[str, Family]
    samples: int
    bytes: int
    remark: str
    incomplete: bool = False
    """Whole families may be missing: the file is ordered by family, as a closed recording is, and ends too early."""

    @property
    def start_ms(self) -> int:
        return min(int(block.times[0]) for block in self.blocks)

    @property
    def end_ms(self) -> int:
        return max(int(block.times[-1]) for block in self.blocks)

    @property
    def step_ms(self) -> int:
        """Median distance of two columns of the block with the most columns; 0 where there is only one."""
        return max(self.blocks, key=lambda block: len(block.times)).step_ms


def load(path: Path, *, cap: int = LOAD_CAP, info: InfoLabels | None = None) -> Recording:
    """Read a recording whole (see ``read_samples`` for the cap and the errors)."""
    samples = read_samples(path, cap=cap)
    stem = path.name.removesuffix(".gz").rsplit(".", 1)[0]
    named = [_with_target(labels, stem) for labels in samples.labels]
    described = info or info_labels()
    blocks = tuple(blocks_of(named, samples.series, samples.times, samples.values, described, samples.families))
    _refuse_folded(blocks, len(samples.series))
    count = len(samples.series) - sum(block.dropped for block in blocks)
    return Recording(
        path, blocks, samples.families, count, samples.bytes, _remark(samples, blocks), _incomplete(samples)
    )


def _incomplete(samples: Samples) -> bool:
    by_family = bool((np.diff(samples.times) < 0).any())
    return by_family and (bool(samples.damage) or not samples.closed)


def _refuse_folded(blocks: Sequence[Block], count: int) -> None:
    """Several targets without a label that tells them apart: whatever is read of them would be of no one."""
    clashes = sum(block.clashes for block in blocks)
    if clashes > max(_MOST_CLASHES * count, _FEW_CLASHES):
        raise ExpositionError(
            f"{clashes} samples have another value than the same series at the same time: several targets without a "
            "label that tells them apart (instance); record them with their labels"
        )


def _remark(samples: Samples, blocks: Sequence[Block]) -> str:
    dropped = samples.dropped + sum(block.dropped for block in blocks)
    clashes = sum(block.clashes for block in blocks)
    said = [samples.damage] if samples.damage else []
    if not samples.closed:
        tail = ", its last line was cut off and left out" if samples.cut else ""
        said.append(f"unclosed recording: no # EOF{tail}")
    if samples.parts > 1:
        said.append(f"{samples.parts} recordings one behind the other, read as one")
    said += [f"{block.instance}: {block.trouble}" for block in blocks if block.trouble]
    if clashes:
        said.append(f"{clashes} samples left out: another value of the same series at the same time came first")
    if dropped:
        said.append(f"too long to hold: the oldest {dropped} samples were left out")
    return "; ".join(said)


def _with_target(labels: Labels, stem: str) -> Labels:
    if labels.get("job") and labels.get("instance"):
        return labels
    return labels.replace(job=labels.get("job") or JOB, instance=labels.get("instance") or stem)


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

    def collect_alone(self, now_ms: int) -> SourceStatus:
        return self._status

    async def close(self) -> None:
        return None

    def expire(self, now_ms: int) -> None:
        """A recording ends where it ends."""

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
            _frame_for(block, self._target, store).load(block.times, block.labels, block.values)
        declare(store, found.families.values())
        self.span = (found.start_ms, found.end_ms)
        self.step_ms = found.step_ms
        return replace(
            status,
            error=found.remark or None,
            incomplete=found.incomplete,
            time_ms=found.end_ms,
            last_ok_ms=found.end_ms,
            duration_s=time.monotonic() - start,
            samples=found.samples,
            bytes=found.bytes,
        )


def _frame_for(block: Block, target: str, store: SeriesStore) -> Frame:
    """The frame that a block goes on from; one of its own where the block overlaps what another file brought."""
    frame = store.frame(f"recording {block.job} {block.instance}")
    if len(frame.times) and block.times[0] <= frame.times[-1]:
        return store.frame(f"{target} {block.job} {block.instance}")
    return frame
