"""A page seen before: its lines by place, so that only the numbers are read anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from probes.exposition.line import Family
from probes.records import dataclass

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Texts = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Every line up to its last space, and what the line stands for."""

    heads: Texts
    pick_values: Callable[[Texts], Texts]
    pick_notes: Callable[[Texts], Texts]
    notes: Texts
    rows: IntArray
    families: Mapping[str, Family]
    duplicates: int
    openmetrics: bool

    @classmethod
    def of(
        cls,
        heads: Texts,
        tails: Texts,
        places: Sequence[int],
        notes_at: Sequence[int],
        rows: IntArray,
        families: Mapping[str, Family],
        duplicates: int,
        openmetrics: bool,
    ) -> Layout:
        """Lines in two parts, where the samples (one a row) and where the comments are, and what they say."""
        notes = picker(notes_at)
        return cls(heads, picker(places), notes, notes(tails), rows, families, duplicates, openmetrics)

    def values(self, tails: Texts) -> FloatArray | None:
        """The values of ``rows``; None when a comment changed or a value is not a plain number."""
        return numbers(self.pick_values(tails)) if self.pick_notes(tails) == self.notes else None


def numbers(texts: Texts) -> FloatArray | None:
    """Plain numbers, or None where one of them is none."""
    try:
        values = np.fromiter(map(float, texts), dtype=np.float64, count=len(texts))
    except ValueError:
        return None
    return None if b"_" in b" ".join(texts) else values


def picker(places: Sequence[int]) -> Callable[[Texts], Texts]:
    if len(places) >= 2:
        return itemgetter(*places)
    return lambda texts: tuple(texts[at] for at in places)
