"""What an expression evaluates to, for K steps at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from probes.columns import Floats, Mask, Times
from probes.labels import Labels
from probes.records import dataclass

Inputs: TypeAlias = tuple[frozenset[Labels], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Vector:
    """S series over K steps.

    ``values`` [S, K] float64 and ``present`` [S, K] bool (a NaN that is present is a value). ``times`` [K] ms.
    With tracking, ``oldest`` [S, K] is a time in ms: of each raw series behind a value its newest sample counts,
    and of those the oldest is told; ``inputs[s]`` is the set of raw series behind row ``s``.
    """

    labels: tuple[Labels, ...]
    times: Times
    values: Floats
    present: Mask
    oldest: Times | None = None
    inputs: Inputs | None = None

    def take(self, rows: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.intp]]) -> Vector:
        """The rows named, in that order."""
        index = np.asarray(rows, dtype=np.intp)
        picked = index.tolist()
        return Vector(
            tuple(self.labels[i] for i in picked),
            self.times,
            self.values[index],
            self.present[index],
            None if self.oldest is None else self.oldest[index],
            None if self.inputs is None else tuple(self.inputs[i] for i in picked),
        )

    def pruned(self) -> Vector:
        """Without the rows that are present at no step."""
        alive = self.present.any(axis=1)
        return self if alive.all() else self.take(np.flatnonzero(alive))

    def __len__(self) -> int:
        return len(self.labels)

    @staticmethod
    def empty(times: Times, track: bool = False) -> Vector:
        shape = (0, times.size)
        oldest = np.empty(shape, dtype=np.int64) if track else None
        return Vector((), times, np.empty(shape), np.empty(shape, dtype=bool), oldest, () if track else None)


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """One number a step: ``values`` [K]. With tracking, what it rests on, as for ``Vector``."""

    times: Times
    values: Floats
    oldest: Times | None = None
    inputs: frozenset[Labels] = frozenset()


@dataclass(frozen=True, slots=True)
class String:
    value: str


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Raw samples of S series, the answer to a bare range selector at one instant."""

    labels: tuple[Labels, ...]
    times: tuple[Times, ...]
    values: tuple[Floats, ...]


Value: TypeAlias = Vector | Scalar | String | Matrix
