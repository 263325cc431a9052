"""What a panel was, tick by tick: the history that the charts draw, appended and never asked for twice."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from probes.labels import Labels

Key = tuple[str, Labels]
"""Panel name and entity (no labels: the fleet)."""


class Trail(NamedTuple):
    """Values of one panel for one entity over ``times`` (ms, rising); NaN where there was none."""

    times: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def last(self) -> tuple[int, float] | None:
        """Time and value of the newest sample, if there ever was one."""
        for time, value in zip(reversed(self.times), reversed(self.values), strict=True):
            if not math.isnan(value):
                return time, value
        return None

    def columns(self, start_ms: int, end_ms: int, width: int, *, low: bool = False) -> list[float]:
        """One value for each of ``width`` equal spans of time: its highest sample (``low``: its lowest), else NaN.

        A sample holds until the next tick, so that a line has no holes where ticks are wider than columns.
        """
        out = [math.nan] * width
        scale = width / max(1, end_ms - start_ms)
        times, values = self.times, self.values
        for index in range(bisect_left(times, start_ms), bisect_right(times, end_ms)):
            value = values[index]
            if value != value:  # NaN
                continue
            column = int((times[index] - start_ms) * scale)
            if column >= width:
                column = width - 1
            known = out[column]
            if known != known or (value < known if low else value > known):
                out[column] = value
            if index + 1 < len(times):
                until = int((times[index + 1] - start_ms) * scale)
                for held in range(column + 1, until if until < width else width):
                    out[held] = value
        return out


NO_TRAIL = Trail((), ())


class History:
    """Trails of many panels on one time axis, bounded in time; `freeze` hands out an immutable picture."""

    def __init__(self, keep_ms: int) -> None:
        self.keep_ms = keep_ms
        self._times: list[int] = []
        self._rows: dict[Key, list[float]] = {}

    @property
    def end_ms(self) -> int | None:
        return self._times[-1] if self._times else None

    def clear(self) -> None:
        self._times.clear()
        self._rows.clear()

    def append(self, times: Sequence[int], answers: Iterable[tuple[str, Mapping[Labels, Sequence[float]]]]) -> None:
        """Steps newer than the end; each answer is a panel's name and entity to one value a step."""
        before, count = len(self._times), len(times)
        self._times.extend(times)
        for name, grid in answers:
            for entity, values in grid.items():
                row = self._rows.get((name, entity))
                if row is None:
                    row = self._rows[(name, entity)] = [math.nan] * before
                row.extend(values)
        for row in self._rows.values():
            row.extend([math.nan] * (before + count - len(row)))
        self._trim()

    def _trim(self) -> None:
        horizon = self._times[-1] - self.keep_ms if self._times else 0
        drop = 0
        while drop < len(self._times) and self._times[drop] < horizon:
            drop += 1
        if drop:
            del self._times[:drop]
            for key in list(self._rows):
                row = self._rows[key]
                del row[:drop]
                if all(math.isnan(value) for value in row):
                    del self._rows[key]

    def freeze(self) -> dict[Key, Trail]:
        times = tuple(self._times)
        return {key: Trail(times, tuple(row)) for key, row in self._rows.items()}

    def last(self, key: Key) -> tuple[int, float] | None:
        row = self._rows.get(key)
        return Trail(tuple(self._times), tuple(row)).last if row else None
