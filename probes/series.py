"""The series store: a bounded, columnar window of samples, one ``Frame`` a source.

Threads: one writer; readers run in the writer's thread. Nothing here locks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from probes.columns import ABSENT, STALE, Floats, Rows, Times, is_absent, is_sample, is_stale
from probes.frame import Frame
from probes.labels import NAME, Labels
from probes.promql.ast import Matcher
from probes.records import dataclass

__all__ = [
    "ABSENT",
    "STALE",
    "Floats",
    "Frame",
    "Metadata",
    "Selection",
    "SeriesStore",
    "Times",
    "is_absent",
    "is_sample",
    "is_stale",
]

DEFAULT_BYTES = 32 * 1024 * 1024
_SELECTIONS = 4096


@dataclass(frozen=True, slots=True)
class Metadata:
    """What an exposition page says of a metric family: ``# TYPE``, ``# HELP``, ``# UNIT``."""

    type: str = "unknown"
    help: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Selection:
    """Series of one frame: ``rows[i]`` is the row of ``labels[i]``; in row order, so that neighbours lie together."""

    frame: Frame
    rows: Rows
    labels: tuple[Labels, ...]

    @cached_property
    def unnamed(self) -> tuple[Labels, ...]:
        """The label sets less the metric name."""
        return tuple(found.unnamed() for found in self.labels)


class SeriesStore:
    """Frames by source, one byte budget over all of them, and an index by metric name."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self.max_bytes = max_bytes
        self.version = 0
        self._frames: dict[str, Frame] = {}
        self._metadata: dict[str, Metadata] = {}
        self._cache: dict[tuple[Matcher, ...], list[Selection]] = {}
        self._cached_at = 0

    def frame(self, source: str) -> Frame:
        """The frame of a source, made when it is new."""
        found = self._frames.get(source)
        if found is None:
            found = self._frames[source] = Frame(source, self)
        return found

    @property
    def frames(self) -> list[Frame]:
        return list(self._frames.values())

    def remove(self, source: str) -> None:
        """Forget a source and its samples."""
        if self._frames.pop(source, None) is not None:
            self.version += 1

    def select(self, matchers: Sequence[Matcher]) -> list[Selection]:
        """The series that all matchers accept, one selection a frame; cached until a series comes or goes.

        A label set that two frames hold is taken from the frame made first.
        """
        if self._cached_at != self.version:
            self._cache.clear()
            self._cached_at = self.version
        key = tuple(matchers)
        found = self._cache.get(key)
        if found is None:
            if len(self._cache) >= _SELECTIONS:
                self._cache.clear()
            found = self._cache[key] = self._search(key)
        return found

    def _search(self, matchers: tuple[Matcher, ...]) -> list[Selection]:
        exact = next((m.value for m in matchers if m.name == NAME and m.op == "="), None)
        others = [m for m in matchers if not (m.name == NAME and m.op == "=" and m.value == exact)]
        seen: set[Labels] = set()
        found: list[Selection] = []
        for frame in self._frames.values():
            names = [exact] if exact is not None else list(frame.names())
            hits: list[tuple[Labels, int]] = []
            for name in names:
                for row in frame.rows_named(name):
                    labels = frame.label_at(row)
                    if labels not in seen and all(m.accepts(labels.get(m.name)) for m in others):
                        hits.append((labels, row))
            if hits:
                hits.sort(key=lambda hit: hit[1])
                seen.update(labels for labels, _ in hits)
                rows = np.array([row for _, row in hits], dtype=np.intp)
                found.append(Selection(frame, rows, tuple(labels for labels, _ in hits)))
        return found

    def metadata(self, name: str) -> Metadata | None:
        """Metadata of a metric family, or None when no page declared it."""
        return self._metadata.get(name)

    def set_metadata(self, name: str, metadata: Metadata) -> None:
        self._metadata[name] = metadata

    def names(self) -> list[str]:
        """All metric names, sorted."""
        return sorted({name for frame in self._frames.values() for name in frame.names()})

    def series(self) -> Iterator[Labels]:
        for frame in self._frames.values():
            yield from frame.labels

    def span(self) -> tuple[int, int] | None:
        """First and last sample time over all frames, ms; None when empty."""
        axes = [frame.times for frame in self._frames.values() if frame.times.size]
        if not axes:
            return None
        return min(int(a[0]) for a in axes), max(int(a[-1]) for a in axes)

    def latest(self, labels: Labels, at_ms: int | None = None) -> tuple[int, float] | None:
        """Time (ms) and value of a series' newest sample (at or before ``at_ms``), or None."""
        found = (frame.latest(labels, at_ms) for frame in self._frames.values())
        return next((pair for pair in found if pair is not None), None)

    @property
    def samples(self) -> int:
        return sum(frame.samples for frame in self._frames.values())

    @property
    def nbytes(self) -> int:
        """Bytes of sample storage over all frames."""
        return sum(frame.nbytes for frame in self._frames.values())

    def trim(self) -> None:
        """Drop oldest blocks until the budget holds; the open block of a frame always stays."""
        total = self.nbytes
        while total > self.max_bytes:
            ends = [(end, f) for f in self._frames.values() if (end := f.oldest_sealed_ms) is not None]
            if not ends:
                return
            frame = min(ends, key=lambda pair: pair[0])[1]
            before = frame.nbytes
            frame.drop_oldest()
            total += frame.nbytes - before
