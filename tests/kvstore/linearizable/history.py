"""What is recorded of every operation: columns, one row a key that it wrote or saw."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

EVENT = np.dtype(
    [
        ("kind", "u1"),
        ("process", "u1"),
        ("layer", "u2"),
        ("valid", "u4"),
        ("key", "i8"),
        ("begin", "i8"),
        ("end", "i8"),
        ("clock", "i8"),
        ("value", "i8"),
        ("step", "i8"),
        ("leased", "i8"),
    ]
)
"""`begin`, `end`: CLOCK_MONOTONIC in ns (one host, so one clock), around the whole call. `clock` is the version,
`value` what its writer put into it (0: the operation did not see the bytes). `step` ties the reads of one step over the
layers together (−1: none). `leased`: the version that a snapshot was leased at."""

Events = npt.NDArray[Any]
"""`[n]` of dtype `EVENT`."""
UNANSWERED = (1 << 63) - 1
"""The end of a write whose outcome is not known."""


class Kind(IntEnum):
    WRITE = 0
    """A new version."""
    READ = 1
    """A version seen through the index."""
    MISS = 2
    """Seen through the index: there is none."""
    SNAPSHOT = 3
    """A leased location read again: it may be old, but must be the version that was leased."""
    END = 4
    """The tail became full: after this its key has no version any more."""


class Recorder:
    """The events of one process."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._rows: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        kind: Kind,
        key: int,
        begin: int,
        end: int,
        *,
        clock: int = 0,
        value: int = 0,
        valid: int = 0,
        layer: int = 0,
        step: int = -1,
        leased: int = 0,
    ) -> None:
        row = (int(kind), self._process, layer, valid, key, begin, end, clock, value, step, leased)
        self._rows.append(row)

    def events(self) -> Events:
        return np.array(self._rows, EVENT)

    def save(self, path: Path) -> None:
        np.save(path, self.events())


def load(paths: list[Path]) -> Events:
    """The events of several processes."""
    return np.concatenate([np.load(path) for path in paths])
