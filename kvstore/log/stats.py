"""What the log counts; `kvstore.meters.Meters` has the same fields and can be given instead."""

from __future__ import annotations

from typing import Protocol

from probes.instrument.histogram import Histogram

FLUSH_BOUNDS_S = (1e-4, 15e-5, 2e-4, 3e-4, 5e-4, 75e-5, 1e-3, 2e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
GROUP_BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 512, 1024)


class WalMeters(Protocol):
    """Fields are written by the log's flusher thread only."""

    wal_flush_seconds: Histogram
    """One fdatasync that acknowledgements waited for."""
    wal_group_records: Histogram
    """Records that one flush (without sync: one write) carried."""
    wal_written_bytes: int
    """To segments and checkpoints: headers, payloads, rewrites. Not the zeros of a segment's making."""
    wal_acknowledged_bytes: int
    """Payload bytes of acknowledged batches."""
    wal_rewritten_bytes: int
    """Part of the written bytes: live records moved out of old segments."""
    wal_failures: dict[str, int]
    """By operation: write, flush."""


class LogStats:
    """The fields of `WalMeters`, on their own."""

    def __init__(self) -> None:
        self.wal_flush_seconds = Histogram(FLUSH_BOUNDS_S)
        self.wal_group_records = Histogram(GROUP_BOUNDS)
        self.wal_written_bytes = 0
        self.wal_acknowledged_bytes = 0
        self.wal_rewritten_bytes = 0
        self.wal_failures = {"write": 0, "flush": 0}
