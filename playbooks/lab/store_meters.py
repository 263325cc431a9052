"""Counters and histograms of a simulated store shard, with the names and bucket bounds of the real one."""

from __future__ import annotations

from dataclasses import dataclass, field

from .meters import Histogram

OPERATIONS = ("lookup", "put", "append", "touch", "lease", "session")
RESULTS = ("ok", "refused", "error")
MISS_REASONS = ("absent", "evicted", "expired", "removed")
READ_RESULTS = ("ok", "torn", "recycled", "corrupt", "expired")
PUT_STAGES = ("pull", "log", "publish")
PUT_REFUSALS = ("no_space", "no_run", "checksum", "staging", "log_full", "log_failed", "deadline")
SITES = ("bitmap.allocate", "bitmap.count", "block_table.read")
TABLE_SITE = "block_table.update"

OPERATION = (25e-6, 50e-6, 1e-4, 25e-5, 5e-4, 1e-3, 25e-4, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
FLUSH = (1e-4, 15e-5, 2e-4, 3e-4, 5e-4, 75e-5, 1e-3, 2e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
COUNT = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
LIFE = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0,
        1800.0, 3600.0)  # fmt: skip
RETURN = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0, 7200.0)


def _zeros(names: tuple[str, ...]) -> dict[str, float]:
    return dict.fromkeys(names, 0.0)


@dataclass(slots=True)
class ClassMeters:
    """The counters of one session class."""

    opened: int = 0
    closed: dict[str, float] = field(default_factory=lambda: _zeros(("closed", "expired")))
    returns: dict[str, float] = field(default_factory=lambda: _zeros(("alive", "expired")))
    return_gap: Histogram = field(default_factory=lambda: Histogram(RETURN))


class ShardMeters:
    """Everything that one shard counts over its life."""

    def __init__(self) -> None:
        self.operations = {name: _zeros(RESULTS) for name in OPERATIONS}
        self.operation_seconds = {name: Histogram(OPERATION) for name in OPERATIONS}
        self.busy_seconds = 0.0
        self.lookup_blocks = _zeros(("hit", "miss"))
        self.lookup_misses = _zeros(MISS_REASONS)
        self.put_blocks = 0
        self.put_stage = {name: Histogram(OPERATION) for name in PUT_STAGES}
        self.put_refusals = _zeros(PUT_REFUSALS)
        self.allocations = 0
        self.allocation_blocks = 0
        self.allocation_runs = Histogram(COUNT)
        self.evicted_blocks = _zeros(("capacity", "run"))
        self.idle_before_evict = Histogram(LIFE)
        self.reuse_gap = Histogram(LIFE)
        self.reads = 0
        self.read_blocks = _zeros(READ_RESULTS)
        self.read_descriptors = 0
        self.read_seconds = Histogram(OPERATION)
        self.flush_seconds = Histogram(FLUSH)
        self.group_records = Histogram(COUNT)
        self.wal_written = 0
        self.wal_acknowledged = 0
        self.wal_failures = _zeros(("write", "flush"))
        self.leases_granted = 0
        self.device_reads = _zeros(SITES)
        self.sync_seconds = _zeros(SITES)
        self.uploads = 0
        self.upload_bytes = 0
        self.upload_seconds = 0.0
        self.classes: dict[str, ClassMeters] = {}

    def of_class(self, name: str) -> ClassMeters:
        return self.classes.setdefault(name, ClassMeters())
