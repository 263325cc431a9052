"""What a shard counts: plain integers and buckets, incremented where it happens and read when somebody scrapes.

How a shard adopts it::

    self.meters = Meters()
    with instrument.span("kv.put", meter=self.meters.operations["put"], blocks=n, parent=envelope.traceparent):
        self.meters.put_blocks += n
        self.meters.put_stage_seconds["pull"].observe(seconds, span.trace_id)
        self.meters.put_refusals[error.reason] += 1            # a reason of PUT_REFUSALS, else KeyError
    self.meters.session("chat").returns["alive"] += 1          # a class is there once it was asked for
    self.meters.add_reads(report)                              # a client's `messages.ReadReport`

Fields are named after their series (`docs/store.md`, "What /metrics says"), without ``kv_`` and ``_total``; a labelled
series is a dict by its label. A field has one writing thread (the log's flusher writes the `wal_*` fields, the shard's
thread all others); reading from elsewhere is safe, since each is one Python object. Gauges are not kept here: they
are read from the parts at scrape time, through `page.PageSource`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore.errors import DeviceFailed, LogCorrupt, LogFailed, ShardUnavailable, StoreError
from probes.instrument.histogram import Histogram
from probes.instrument.operation import Operation

if TYPE_CHECKING:
    from kvstore.messages import ReadReport

OPERATIONS = ("lookup", "put", "append", "touch", "lease", "session")
MISS_REASONS = ("absent", "evicted", "expired", "removed")
READ_RESULTS = ("ok", "torn", "recycled", "corrupt", "expired")
PUT_STAGES = ("transfer", "pull", "log", "publish")
PUT_REFUSALS = ("no_space", "no_run", "checksum", "staging", "log_full", "log_failed", "deadline")
EVICTION_REASONS = ("capacity", "run")
DEVICE_SITES = ("bitmap.allocate", "bitmap.count", "block_table.read")
WAL_OPERATIONS = ("write", "flush")
MAX_SESSION_CLASSES = 64
"""Classes come from clients; those beyond this many are counted under `OTHER_CLASS`, so that a page stays bounded."""
OTHER_CLASS = "other"

OPERATION_BOUNDS_S = (25e-6, 50e-6, 1e-4, 25e-5, 5e-4, 1e-3, 25e-4, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
"""From a lookup in the mapped index (tens of µs) to the default deadline of a request (5 s)."""
FLUSH_BOUNDS_S = (1e-4, 15e-5, 2e-4, 3e-4, 5e-4, 75e-5, 1e-3, 2e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
"""Fine around the flush of an SSD (0.1–0.4 ms), coarse up to a device that stalls."""
COUNT_BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 512, 1024)
BYTE_BOUNDS = tuple(float(1 << power) for power in range(10, 31, 2))
"""1 KiB … 1 GiB."""
LIFE_BOUNDS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
"""Lives of blocks: from a pool that thrashes to the default TTL of a session and beyond."""
RETURN_BOUNDS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 2700, 3600, 7200)


def result_of(failure: BaseException) -> str:
    """``refused``: the store would not, and said why; ``error``: it could not."""
    fault = (LogFailed, LogCorrupt, ShardUnavailable, DeviceFailed)
    refused = isinstance(failure, StoreError) and type(failure) is not StoreError and not isinstance(failure, fault)
    return "refused" if refused else "error"


class SessionMeters:
    """The counters of one session class."""

    __slots__ = ("closed", "opened", "return_gap_seconds", "returns")

    def __init__(self) -> None:
        self.opened = 0
        self.closed = {"closed": 0, "expired": 0}
        self.returns = {"alive": 0, "expired": 0}
        self.return_gap_seconds = Histogram(RETURN_BOUNDS_S)


class Meters:
    """All counters and histograms of one shard."""

    def __init__(self) -> None:
        self.operations = {name: Operation(name, OPERATION_BOUNDS_S, result_of) for name in OPERATIONS}
        self.busy_seconds = 0.0
        self.lookup_blocks = {"hit": 0, "miss": 0}
        self.lookup_misses = dict.fromkeys(MISS_REASONS, 0)
        self._writes()
        self._reads()
        self._log()
        self.leases_granted = 0
        self.leases_expired = 0
        self.device_reads = dict.fromkeys(DEVICE_SITES, 0)
        self.sync_seconds = dict.fromkeys(DEVICE_SITES, 0.0)
        self.device_uploads: dict[str, int] = {}
        self.device_upload_bytes: dict[str, int] = {}
        self.device_upload_seconds: dict[str, float] = {}
        self.sessions: dict[str, SessionMeters] = {}

    def _writes(self) -> None:
        self.put_blocks = 0
        self.put_bytes = 0
        self.put_stage_seconds = {stage: Histogram(OPERATION_BOUNDS_S) for stage in PUT_STAGES}
        self.transfer_descriptors = Histogram(COUNT_BOUNDS)
        self.transfer_bytes = Histogram(BYTE_BOUNDS)
        self.transfer_seconds = Histogram(OPERATION_BOUNDS_S)
        self.put_refusals = dict.fromkeys(PUT_REFUSALS, 0)
        self.allocations = 0
        self.allocation_blocks = 0
        self.allocation_runs = Histogram(COUNT_BOUNDS)
        self.evicted_blocks = dict.fromkeys(EVICTION_REASONS, 0)
        self.block_idle_before_evict_seconds = Histogram(LIFE_BOUNDS_S)
        self.block_reuse_gap_seconds = Histogram(LIFE_BOUNDS_S)

    def _reads(self) -> None:
        self.reads = 0
        self.read_blocks = dict.fromkeys(READ_RESULTS, 0)
        self.read_bytes = 0
        self.read_descriptors = 0
        self.read_seconds = Histogram(OPERATION_BOUNDS_S)

    def _log(self) -> None:
        self.wal_flush_seconds = Histogram(FLUSH_BOUNDS_S)
        self.wal_group_records = Histogram(COUNT_BOUNDS)
        self.wal_written_bytes = 0
        self.wal_acknowledged_bytes = 0
        self.wal_rewritten_bytes = 0
        self.wal_failures = dict.fromkeys(WAL_OPERATIONS, 0)

    def session(self, session_class: str) -> SessionMeters:
        """The counters of a session class, made when it is first asked for."""
        found = self.sessions.get(session_class)
        if found is None:
            if len(self.sessions) >= MAX_SESSION_CLASSES:
                session_class = OTHER_CLASS
            found = self.sessions.setdefault(session_class, SessionMeters())
        return found

    def refused_put(self, failure: BaseException) -> None:
        """Count a put that ended with `failure`, where its reason is one that the page lists."""
        reason = getattr(failure, "reason", "")
        if reason in self.put_refusals:
            self.put_refusals[reason] += 1

    def allocated(self, blocks: int, runs: int) -> None:
        """One allocation of `blocks` slots that was made of `runs` runs."""
        self.allocations += 1
        self.allocation_blocks += blocks
        self.allocation_runs.observe(runs)

    def moved(self, descriptors: int, size: int, seconds: float) -> None:
        """One transfer over the network that this shard asked for, and its end."""
        self.transfer_descriptors.observe(descriptors)
        self.transfer_bytes.observe(size)
        self.transfer_seconds.observe(seconds)

    def synced(self, site: str, seconds: float) -> None:
        """The host read the device's state at `site` (one of `DEVICE_SITES`) and was held up for `seconds`."""
        self.device_reads[site] += 1
        self.sync_seconds[site] += seconds

    def uploaded(self, site: str, size: int, seconds: float) -> None:
        """The host sent `size` bytes of state to the device at `site`, which held up the step for `seconds`."""
        self.device_uploads[site] = self.device_uploads.get(site, 0) + 1
        self.device_upload_bytes[site] = self.device_upload_bytes.get(site, 0) + size
        self.device_upload_seconds[site] = self.device_upload_seconds.get(site, 0.0) + seconds

    def add_reads(self, report: ReadReport) -> None:
        """What a client's one-sided reads did since its last report."""
        self.reads += report.batches
        self.read_bytes += report.bytes
        self.read_descriptors += report.descriptors
        for result in READ_RESULTS:
            self.read_blocks[result] += getattr(report, f"blocks_{result}")
        for seconds in report.seconds:
            self.read_seconds.observe(seconds)
