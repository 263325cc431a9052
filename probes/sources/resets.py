"""Counters that fall: a process that began anew, or several processes that answer at one address."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from probes.columns import Floats, Mask, Times
from probes.exposition import Family
from probes.records import dataclass

FELL = "kvscope_counters_fell"
"""Counters of a page that were lower than on the page before; only where there are some."""
MIXED = "kvscope_processes_mixed"
"""1 while several processes are known to answer at one address; absent else. Counters are then left out."""

MEMORY_MS = 300_000
"""How long a fall is remembered, and how long "mixed" holds after it was last seen (policy)."""
BEFORE_MS = 60_000
"""How long before the first fall samples are not trusted either: the first change of process looks like progress."""
_LEAST_FALL = 1.0  # a clock of the kernel (idle seconds) may step back by a few ticks; no event is counted in fractions
_LEAST_SHARE = 0.1  # of the counters above zero: one that is no counter in truth says nothing of the process
_LEAP = 0.75  # of the fall: a process that restarted every third scrape would make less of it at once


@dataclass(frozen=True, slots=True)
class _Fall:
    time_ms: int
    rows: Times
    high: Floats
    low: Floats

    def undone(self, before: Floats, now: Floats) -> bool:
        """Most counters that fell are back at their old height, by a leap: no process counts that fast anew."""
        leap = now[self.rows] - before[self.rows] >= _LEAP * (self.high - self.low)
        return 2 * int(np.count_nonzero(leap & (now[self.rows] >= self.high))) > len(self.rows)


class Resets:
    """Follows the counters of one target, page by page."""

    def __init__(self) -> None:
        self._falls: list[_Fall] = []
        self._mixed_ms: int | None = None
        self.since_ms: int | None = None
        """From when on the counters are not those of one process; None while they are."""

    def forget(self) -> None:
        """The counters are numbered anew."""
        self._falls.clear()

    def take(self, time_ms: int, before: Floats, now: Floats) -> int:
        """Compare two pages, ``[S]`` each, NaN where a counter is not there; how many fell."""
        self._falls = [fall for fall in self._falls if time_ms - fall.time_ms <= MEMORY_MS]
        with np.errstate(invalid="ignore"):  # Inf - Inf is no fall
            rows = np.flatnonzero(before - now >= _LEAST_FALL)
        undone = [fall.time_ms for fall in self._falls if fall.undone(before, now)]
        if undone:
            self._mixed_ms = time_ms
            self.since_ms = min(undone[0] - BEFORE_MS, self.since_ms or time_ms)
        elif self._mixed_ms is not None and time_ms - self._mixed_ms > MEMORY_MS:
            self._mixed_ms = self.since_ms = None
        if rows.size and rows.size >= _LEAST_SHARE * np.count_nonzero(before > 0):
            self._falls.append(_Fall(time_ms, rows, before[rows], now[rows]))
        return int(rows.size)

    @property
    def words(self) -> str:
        """What is to be said of the target; nothing of a single restart."""
        if self.since_ms is not None:
            return (
                "several processes answer at this address in turn (counters fall back and return): no rate of it "
                "counts; attach to each process by its own address"
            )
        if len(self._falls) > 1:
            return f"its counters began anew {len(self._falls)} times within five minutes: it restarts again and again"
        return ""


def counts(name: str, families: Mapping[str, Family]) -> bool:
    """Whether a series of this name only ever grows while its process lives: by its declared type, else its suffix."""
    for suffix in ("", "_total", "_bucket", "_count", "_sum"):
        family = families.get(name.removesuffix(suffix)) if name.endswith(suffix) else None
        if family is not None and family.type not in ("untyped", "unknown"):
            if family.type == "counter":
                return suffix in ("", "_total")
            return family.type in ("histogram", "summary") and suffix in ("_bucket", "_count")
    return name.endswith(("_total", "_bucket"))


def falls_of(names: list[str], values: Floats, families: Mapping[str, Family]) -> tuple[Times, Times]:
    """The counters among series ``values [S, T]``, and how many of them fall at each column ``[T]`` (whole history)."""
    rows = np.flatnonzero([counts(name, families) for name in names])
    fell = np.zeros(values.shape[1], dtype=np.int64)
    for start in range(0, len(rows), 256):
        held = _filled(values[rows[start : start + 256]])
        fell[1:] += np.count_nonzero(held[:, :-1] - held[:, 1:] >= _LEAST_FALL, axis=0)
    return rows, fell


def mixed_columns(times: Times, counters: Floats) -> tuple[Mask, str]:
    """The columns at which several processes take turns in the same counters ``[S, T]``, and what is to be said."""
    resets = Resets()
    mixed: Mask = np.zeros(len(times), dtype=np.bool_)
    words = ""
    last = np.full(len(counters), np.nan)
    for at, time_ms in enumerate(times.tolist()):
        column = counters[:, at]
        resets.take(time_ms, last, column)
        if resets.since_ms is not None:
            mixed[np.searchsorted(times, resets.since_ms) : at + 1] = True
        words = resets.words or words
        last = np.where(np.isnan(column), last, column)
    return mixed, words


def _filled(values: Floats) -> Floats:
    """Each hole with the value before it."""
    there = ~np.isnan(values)
    if there.all():
        return values
    at = np.maximum.accumulate(np.where(there, np.arange(values.shape[1]), 0), axis=1)
    filled: Floats = np.take_along_axis(values, at, axis=1)
    return filled
