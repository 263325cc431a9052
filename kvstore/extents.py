"""Extents: runs of slots that were allocated together, and are claimed and evicted together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Extents:
    """At most one extent a slot. `of_slot [slots]` is the extent of each slot, −1 for none."""

    def __init__(self, slots: int) -> None:
        self.of_slot = np.full(slots, -1, np.int64)
        self.start = np.zeros(slots, np.int64)
        self.length = np.zeros(slots, np.int64)
        self.live = np.zeros(slots, np.int64)
        self.holds = np.zeros(slots, np.int32)
        self.pins = np.zeros(slots, np.int32)
        self.leased_until = np.zeros(slots, np.int64)
        self.used_ms = np.zeros(slots, np.int64)
        self.tick = np.zeros(slots, np.int64)
        self._mark = np.zeros(slots, np.bool_)
        self._spare = np.arange(slots - 1, -1, -1, dtype=np.int64)
        self._spares = slots
        self._now = 0

    def __len__(self) -> int:
        return len(self.start)

    def found(self, slots: Slots, now_ms: int, cuts: Flags | None = None) -> None:
        """New extents for `slots` (ascending, in no extent): one a run, ended also before row i + 1 where `cuts[i]`.
        The first is the newest."""
        ends = np.diff(slots) != 1
        breaks = np.flatnonzero(ends if cuts is None else ends | cuts) + 1
        firsts = np.concatenate([[0], breaks])
        lengths = np.diff(np.concatenate([firsts, [len(slots)]]))
        ids = self._spare[self._spares - len(firsts) : self._spares].copy()
        self._spares -= len(firsts)
        self.of_slot[slots] = np.repeat(ids, lengths)
        self.start[ids], self.length[ids], self.live[ids] = slots[firsts], lengths, lengths
        self.holds[ids] = self.pins[ids] = 0
        self.leased_until[ids] = 0
        self.used_ms[ids] = now_ms
        self.tick[ids] = self._ticks(len(ids))

    def forget(self, slots: Slots) -> None:
        """`slots` leave their extents; an empty extent ends."""
        ids, counts = np.unique(self.of_slot[slots], return_counts=True)
        self.of_slot[slots] = -1
        self.live[ids] -= counts
        ended = ids[self.live[ids] == 0]
        self._spare[self._spares : self._spares + len(ended)] = ended
        self._spares += len(ended)

    def slots(self, extent: int) -> Slots:
        """The slots that are still in it."""
        run = np.arange(self.start[extent], self.start[extent] + self.length[extent], dtype=np.int64)
        inside: Slots = run[self.of_slot[run] == extent]
        return inside

    def ids_of(self, slots: Slots) -> Ids:
        """The extents of `slots`, each once."""
        ids = self.of_slot[slots]
        if len(ids) < 64:
            return np.unique(ids)
        self._mark[ids] = True
        found = np.flatnonzero(self._mark)
        self._mark[found] = False
        return found

    def alive(self) -> Ids:
        """All extents that have slots."""
        return np.unique(self.of_slot[self.of_slot >= 0])

    def unclaimed(self, ids: Ids, now_ms: int) -> Flags:
        """No lease that may still run, and no pin."""
        free: Flags = (self.leased_until[ids] <= now_ms) & (self.pins[ids] == 0)
        return free

    def evictable(self, ids: Ids, now_ms: int) -> Flags:
        """Unclaimed, and no session holds it."""
        free: Flags = self.unclaimed(ids, now_ms) & (self.holds[ids] == 0)
        return free

    def lease(self, slots: Slots, until_ms: int) -> None:
        ids = self.of_slot[slots]
        self.leased_until[ids] = np.maximum(self.leased_until[ids], until_ms)

    def hold(self, slots: Slots, count: npt.NDArray[np.int32]) -> None:
        np.add.at(self.holds, self.of_slot[slots], count)

    def pin(self, slots: Slots, count: int) -> None:
        np.add.at(self.pins, self.of_slot[slots], count)

    def touch(self, slots: Slots, now_ms: int) -> Slots:
        """A use, now, the first row the newest; the time since the use before, a row a slot, in ms."""
        ids = self.of_slot[slots]
        gaps = now_ms - self.used_ms[ids]
        self.used_ms[ids] = now_ms
        # With equal rows the last assignment stays: from the back, that is an extent's first row.
        self.tick[ids[::-1]] = self._ticks(len(ids))[::-1]
        return gaps

    def _ticks(self, n: int) -> Slots:
        """`n` ticks above all before, the first the highest."""
        ticks = np.arange(self._now + n, self._now, -1, dtype=np.int64)
        self._now += n
        return ticks
