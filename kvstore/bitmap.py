"""Which slots are free: packed 64-bit words, read a word at a time, contiguous runs first.

A set bit is a free slot. `NaiveBitmap` is the textbook mistake kept for rehearsal (`kvstore serve --naive-bitmap`):
one boolean a slot, read element by element by the host. On a GPU every such read drains the device's queue; on a CPU a
short wait stands in for that drain.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import Protocol

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.int64]
Runs = tuple[Slots, Slots]
"""Starts and lengths of runs of free slots, in order of position."""

_WORD = 64
_CHUNK_WORDS = 512


class SlotBitmap(Protocol):
    """What a pool needs of a bitmap."""

    free: int
    device_reads: Counter[str]
    sync_seconds: defaultdict[str, float]

    def allocate(self, n: int, *, one_run: bool = False) -> Slots | None: ...
    def release(self, slots: Slots) -> None: ...
    def runs(self) -> Runs: ...
    def is_free(self) -> npt.NDArray[np.bool_]: ...


def runs_of(flags: npt.NDArray[np.bool_]) -> Runs:
    """Starts and lengths of the runs of true in `flags`."""
    padded = np.zeros(len(flags) + 2, np.int8)
    padded[1:-1] = flags
    steps = np.diff(padded)
    starts = np.flatnonzero(steps == 1)
    return starts, np.flatnonzero(steps == -1) - starts


def longest_first(runs: Runs, n: int) -> Slots:
    """`n` slots of `runs`, whole runs from the longest on; the caller knows that there are enough."""
    starts, lengths = runs
    order = np.argsort(-lengths, kind="stable")
    needed = int(np.searchsorted(np.cumsum(lengths[order]), n)) + 1
    taken = np.concatenate([np.arange(starts[i], starts[i] + lengths[i]) for i in order[:needed].tolist()])
    return np.sort(taken[:n])


class Bitmap:
    """`count` slots, all free at first. Not for several threads."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.free = count
        self.device_reads: Counter[str] = Counter()
        self.sync_seconds: defaultdict[str, float] = defaultdict(float)
        self._words = np.zeros(-(-count // _WORD), np.uint64)
        self._words[: count // _WORD] = ~np.uint64(0)
        if count % _WORD:
            self._words[-1] = np.uint64((1 << count % _WORD) - 1)
        self._cursor = 0
        self._longest: int | None = None

    def allocate(self, n: int, *, one_run: bool = False) -> Slots | None:
        """`n` free slots, now taken, in ascending order: one run if there is one, else the longest runs.

        None when fewer than `n` are free, or (`one_run`) when no run is that long.
        """
        if n < 1 or n > self.free:
            return None
        start = self._find_run(n)
        if start is not None:
            slots = np.arange(start, start + n, dtype=np.int64)
            self._cursor = start + n
        elif one_run:
            return None
        else:
            slots = longest_first(self.runs(), n)
        self._flip(slots)
        self.free -= n
        return slots

    def release(self, slots: Slots) -> None:
        """`slots` (distinct, taken) are free again."""
        self._flip(slots)
        self.free += len(slots)
        self._longest = None

    def is_free(self) -> npt.NDArray[np.bool_]:
        """One flag a slot."""
        bits = np.unpackbits(self._words.astype("<u8").view(np.uint8), bitorder="little")
        return bits[: self.count].astype(np.bool_)

    def runs(self) -> Runs:
        """All runs of free slots."""
        return runs_of(self.is_free())

    def _flip(self, slots: Slots) -> None:
        masks = np.left_shift(np.uint64(1), (slots % _WORD).astype(np.uint64))
        np.bitwise_xor.at(self._words, slots // _WORD, masks)

    def _find_run(self, n: int) -> int | None:
        """The start of a run of at least `n`: at the cursor, else the first behind it, else the first of all."""
        if self._cursor + n <= self.count and self._run_at(self._cursor, n):
            return self._cursor
        if self._longest is not None and self._longest < n:
            return None
        words = len(self._words)
        first: int = min(self._cursor // _WORD, words - 1)
        overlap = -(-n // _WORD)
        longest = 0
        for begin in [*range(first, words, _CHUNK_WORDS), *range(0, first + 1, _CHUNK_WORDS)]:
            end = min(begin + _CHUNK_WORDS + overlap, words)
            chunk = self._words[begin:end]
            if not chunk.any():
                continue
            bits = np.unpackbits(chunk.astype("<u8").view(np.uint8), bitorder="little").astype(np.bool_)
            starts, lengths = runs_of(bits)
            fits = np.flatnonzero(lengths >= n)
            if len(fits):
                return int(begin * _WORD + starts[fits[0]])
            longest = max(longest, int(lengths.max()))
        self._longest = longest
        return None

    def _run_at(self, start: int, n: int) -> bool:
        """Whether `n` slots from `start` on are free; a word at a time."""
        end = start + n
        while start < end:
            word, offset = divmod(start, _WORD)
            span = min(_WORD - offset, end - start)
            mask = ((1 << span) - 1) << offset
            if int(self._words[word]) & mask != mask:
                return False
            start += span
        return True


class NaiveBitmap:
    """One boolean a slot, read by the host slot by slot; every read costs `drain_s` (a device's queue running dry).

    Same answers as `Bitmap`, but for where it finds them.
    """

    def __init__(self, count: int, *, drain_s: float = 20e-6) -> None:
        self.count = count
        self.free = count
        self.device_reads: Counter[str] = Counter()
        self.sync_seconds: defaultdict[str, float] = defaultdict(float)
        self._drain_s = drain_s
        self._flags = np.ones(count, np.bool_)

    def allocate(self, n: int, *, one_run: bool = False) -> Slots | None:
        """As `Bitmap.allocate`; the host reads the flags to find its slots, and each slot again to be sure."""
        if n < 1 or n > self.free:
            return None
        begun = time.perf_counter()
        starts, lengths = self.runs()
        fits = np.flatnonzero(lengths >= n)
        if len(fits):
            slots = np.arange(starts[fits[0]], starts[fits[0]] + n, dtype=np.int64)
        elif one_run:
            return None
        else:
            slots = longest_first((starts, lengths), n)
        for slot in slots.tolist():
            self._flags[slot].item()
            self._drain()
        self.device_reads["bitmap.allocate"] += len(slots) + 1
        self.sync_seconds["bitmap.allocate"] += time.perf_counter() - begun
        self._flags[slots] = False
        self.free -= n
        return slots

    def release(self, slots: Slots) -> None:
        self._flags[slots] = True
        self.free += len(slots)

    def is_free(self) -> npt.NDArray[np.bool_]:
        return self._flags.copy()

    def runs(self) -> Runs:
        return runs_of(self._flags)

    def _drain(self) -> None:
        end = time.perf_counter() + self._drain_s
        while time.perf_counter() < end:
            pass
