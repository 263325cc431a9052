"""What one client's reads did on one shard since it last said so: counts, and slots used (for recency)."""

from __future__ import annotations

import threading

import numpy as np

from kvstore.messages import ReadReport, Touch
from kvstore.transport import Ints, Words

MAX_TOUCHED = 16_384
MAX_SECONDS = 4_096


class Tally:
    """Counted by whichever thread reads, sent by the client's loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._counts = dict.fromkeys(("ok", "torn", "recycled", "corrupt", "expired"), 0)
        self._batches = self._bytes = self._descriptors = self._touched = 0
        self._seconds: list[float] = []
        self._slots: list[Ints] = []
        self._generations: list[Words] = []

    def read(self, slots: Ints, generations: Words, ok: int, size: int, descriptors: int, seconds: float) -> None:
        """One batch: `ok` good blocks of `size` bytes in all. `slots` are kept, not copied."""
        with self._lock:
            self._batches += 1
            self._counts["ok"] += ok
            self._bytes += size
            self._descriptors += descriptors
            if len(self._seconds) < MAX_SECONDS:
                self._seconds.append(seconds)
            if self._touched < MAX_TOUCHED:
                self._touched += len(slots)
                self._slots.append(slots)
                self._generations.append(generations)

    def bad(self, result: str, blocks: int) -> None:
        """Blocks that were read and not used: torn, recycled, corrupt, or not read since the lease had expired."""
        with self._lock:
            self._counts[result] += blocks

    def drain(self) -> Touch:
        """Everything since the last call."""
        with self._lock:
            counts = self._counts
            slots = np.concatenate(self._slots) if self._slots else np.zeros(0, np.int64)
            generations = np.concatenate(self._generations) if self._generations else np.zeros(0, np.uint64)
            report = ReadReport(
                self._batches,
                counts["ok"],
                counts["torn"],
                counts["recycled"],
                counts["corrupt"],
                counts["expired"],
                self._bytes,
                self._descriptors,
                tuple(self._seconds),
            )
            self._clear()
        return Touch(slots[:MAX_TOUCHED], generations[:MAX_TOUCHED], report)
