"""How unevenly lookups fall on chains: the share of the commonest chain in the last interval.

Counts by the fingerprint of a lookup's first key (all layers and head groups of a chain alike) are kept with Misra and
Gries' algorithm (1982): with `counters` of them a count is too low by at most lookups / (counters + 1), so memory is
bounded and a share above 1 % is right to a few hundredths of a percent.
"""

from __future__ import annotations

from kvstore.keys import Keys

INTERVAL_MS = 10_000
COUNTERS = 4096


class Hotness:
    """Feed it every lookup; ask for `share`."""

    def __init__(self, interval_ms: int = INTERVAL_MS, counters: int = COUNTERS) -> None:
        self.interval_ms = interval_ms
        self._counters = counters
        self._counts: dict[int, int] = {}
        self._lookups = 0
        self._begun_ms: int | None = None
        self._share: float | None = None

    def saw(self, keys: Keys, now_ms: int) -> None:
        """One lookup of `keys` `[n ≥ 1, 4]`, now."""
        self._turn(now_ms)
        self._lookups += 1
        chain = int(keys[0, 0])
        count = self._counts.get(chain)
        if count is not None:
            self._counts[chain] = count + 1
        elif len(self._counts) < self._counters:
            self._counts[chain] = 1
        else:
            self._counts = {key: left - 1 for key, left in self._counts.items() if left > 1}

    def share(self, now_ms: int) -> float | None:
        """Of the last whole interval; None when it saw no lookup."""
        self._turn(now_ms)
        return self._share

    def _turn(self, now_ms: int) -> None:
        """Close the interval when its time is over; one that passed without a call was empty."""
        if self._begun_ms is None:
            self._begun_ms = now_ms
        passed = (now_ms - self._begun_ms) // self.interval_ms
        if passed < 1:
            return
        empty = passed > 1 or not self._lookups
        self._share = None if empty else max(self._counts.values(), default=0) / self._lookups
        self._begun_ms += passed * self.interval_ms
        self._counts = {}
        self._lookups = 0
