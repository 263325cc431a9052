"""A simulated store shard: one thread of state, a log with group commit, sessions, and what its clients report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import exp
from random import Random

from .store_meters import ShardMeters
from .store_pool import Chunk, RefusedError, StorePool

BLOCK_BYTES = 16_384
HEARTBEAT_S = 1.0
LEASE_S = 2.0
SETTLED_S = 60.0
"""A session counts as idle after this, or after half its TTL if that is shorter."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Options of one shard. ``naive_bitmap``: the host reads a bitmap of the device on every allocation.

    ``device_table``: block tables lie on the device, and a batch of changes goes there in ``uploads`` uploads (1: all
    together, as it should). ``lane``: clients read it by NIXL over this lane. ``scattered``: neighbours in a chain lie
    apart, so that every block is a descriptor of its own.
    """

    blocks: int = 8192
    block_tokens: int = 16
    one_run: bool = False
    durable: bool = False
    naive_bitmap: bool = False
    device_table: bool = False
    uploads: int = 1
    lane: str = ""
    scattered: bool = False


@dataclass(eq=False, slots=True)
class Session:
    """A live session on its home shard; ``chunks`` are the keys of what it holds, by shard name: in the order in which
    it came to hold them, since a set's order is another in each process."""

    number: int
    kind: str
    ttl: float
    last_use: float
    chunks: dict[str, dict[str, None]] = field(default_factory=dict)

    def idle(self, now: float) -> bool:
        return now - self.last_use > min(SETTLED_S, self.ttl / 2)


@dataclass
class Disturbance:
    """What goes wrong on one shard, as a scene sets it."""

    flush_extra: float = 0.0
    flush_share: float = 1.0
    slow: float = 1.0
    stopped_at: float | None = None
    dead_at: float | None = None
    page_gone: bool = False
    stuck: bool = False


class StoreShard:
    """One shard's state and counters; times are seconds."""

    def __init__(self, name: str, instance: str, config: StoreConfig, rng: Random) -> None:
        self.name, self.instance, self.config, self.rng = name, instance, config, rng
        self.trouble = Disturbance()
        self.clients = 3
        self.start(0.0)

    def start(self, now: float) -> None:
        """A new process with an empty pool and counters from zero."""
        config = self.config
        self.meters = ShardMeters()
        self.pool = StorePool(config.blocks, config.block_tokens, self.meters, one_run=config.one_run)
        self.sessions: dict[int, Session] = {}
        self.ttl: dict[str, float] = {}
        self.started, self.cpu = now, 0.2
        self._free_at = self._flush_end = self._group_start = float("-inf")
        self._group = 0
        self._ending: list[tuple[float, str]] = []
        self._asked: Counter[str] = Counter()

    @property
    def serves(self) -> bool:
        return self.trouble.stopped_at is None and self.trouble.dead_at is None

    # --- operations -----------------------------------------------------------------------------------------------

    def operation(self, kind: str, now: float, work: float, *, result: str = "ok", wait: float = 0.0) -> float:
        """Run ``work`` seconds on the shard's thread, then wait for the log; returns when it is answered."""
        if self.trouble.stuck:
            heappush(self._ending, (float("inf"), kind))
            return float("inf")
        noise = exp(self.rng.gauss(0.0, 0.3)) * self.trouble.slow
        took = work * noise + (self.rng.uniform(0.001, 0.012) if self.rng.random() < 0.002 else 0.0)
        begin = max(now, self._free_at)
        self._free_at = begin + took
        self.meters.busy_seconds += took
        self.cpu += took * 1.3
        done = self._free_at + wait
        self.meters.operations[kind][result] += 1
        self.meters.operation_seconds[kind].observe(done - now)
        heappush(self._ending, (done, kind))
        return done

    def inflight(self, now: float) -> dict[str, float]:
        while self._ending and self._ending[0][0] <= now:
            heappop(self._ending)
        found: Counter[str] = Counter(kind for _done, kind in self._ending)
        return {kind: float(found[kind]) for kind in self.meters.operations}

    def lookup(self, keys: Sequence[tuple[str, int]], now: float) -> set[str]:
        """Look up windows, given as (key, tokens); returns the keys that are there, leased."""
        blocks = sum(-(-tokens // self.config.block_tokens) for _key, tokens in keys)
        self.operation("lookup", now, 6e-5 + 6e-7 * blocks)
        found: set[str] = set()
        for key, tokens in keys:
            self._asked[key] += 1
            count = -(-tokens // self.config.block_tokens)
            chunk = self.pool.chunks.get(key)
            if chunk is None:
                self.meters.lookup_blocks["miss"] += count
                self.meters.lookup_misses[self.pool.ghosts.get(key, "absent")] += count
                continue
            found.add(key)
            self._hit(chunk, count, now)
        if found:
            self._read(len(found), now)
        return found

    def _hit(self, chunk: Chunk, count: int, now: float) -> None:
        had = min(count, chunk.blocks)
        self.meters.lookup_blocks["hit"] += had
        if count > had:
            self.meters.lookup_blocks["miss"] += count - had
            self.meters.lookup_misses["absent"] += count - had
        chunk.leased_until = now + LEASE_S
        self.meters.leases_granted += 1
        self.meters.read_blocks["ok"] += had
        self.meters.read_descriptors += had if self.config.scattered else len(chunk.runs)
        self.pool.touch(chunk, now)

    def _read(self, chunks: int, now: float) -> None:
        """A one-sided read of the client: it costs the shard nothing."""
        self.meters.reads += 1
        self.meters.read_seconds.observe(1.5e-4 * chunks * exp(self.rng.gauss(0, 0.35)))

    def put(self, key: str, tokens: int, holder: Session | None, now: float) -> bool:
        """Store one window; False when it was refused."""
        count = -(-tokens // self.config.block_tokens)
        sync = self._sync(count) + self._upload(count)
        number = None if holder is None else holder.number
        try:
            chunk = self.pool.store(key, tokens, number, now)
        except RefusedError as refused:
            self.meters.put_refusals[refused.reason] += 1
            self.operation("put", now, 8e-5 + sync, result="refused")
            return False
        pull = count * BLOCK_BYTES * self.config.block_tokens / 16 / 4e9 * exp(self.rng.gauss(0, 0.25))
        log = self._logged(now, count) if self.config.durable else 0.0
        publish = 2e-5 + 4e-7 * count
        for stage, took in (("pull", pull), ("log", log), ("publish", publish)):
            if stage != "log" or self.config.durable:
                self.meters.put_stage[stage].observe(took)
        self.meters.put_blocks += count
        self.operation("put", now, 8e-5 + pull + publish + sync, wait=log)
        chunk.last_use = now
        if holder is not None:
            holder.chunks.setdefault(self.name, {})[key] = None
        return True

    def append(self, now: float) -> None:
        """The tail of a sequence moves on, and its row of the block table with it."""
        self.operation("append", now, 4e-5 + self._upload(1))

    def _upload(self, blocks: int) -> float:
        """Time that a batch of changes to the block table takes to reach the device."""
        if not self.config.device_table:
            return 0.0
        count = self.config.uploads
        took = count * 1.1e-5 * exp(self.rng.gauss(0, 0.2))
        self.meters.uploads += count
        self.meters.upload_bytes += max(count, blocks) * 8
        self.meters.upload_seconds += took
        return took

    def _sync(self, blocks: int) -> float:
        """Time that an allocation waits for the device's bitmap, when the host reads it."""
        if not self.config.naive_bitmap:
            return 0.0
        total = 0.0
        for site, took in (("bitmap.allocate", 6e-4 + 2e-5 * blocks), ("bitmap.count", 2e-4)):
            took *= exp(self.rng.gauss(0, 0.2))
            self.meters.device_reads[site] += 1
            self.meters.sync_seconds[site] += took
            total += took
        return total

    def _logged(self, now: float, blocks: int) -> float:
        """Seconds until a record written now is on the device: records of one gathering window share a flush."""
        if now > self._group_start:
            if self._group:
                self.meters.group_records.observe(float(self._group))
            self._group = 0
            self._group_start = max(now + 1e-4, self._flush_end)
            took = 1.6e-4 * exp(self.rng.gauss(0, 0.25))
            if self.rng.random() < 0.003:
                took += self.rng.uniform(0.002, 0.02)
            if self.rng.random() < self.trouble.flush_share:
                took += self.trouble.flush_extra * exp(self.rng.gauss(0, 0.1))
            self._flush_end = self._group_start + took
            self.meters.flush_seconds.observe(took)
        self._group += 1
        size = blocks * BLOCK_BYTES
        self.meters.wal_written += size + 64
        self.meters.wal_acknowledged += size
        return max(0.0, self._flush_end - now)

    # --- sessions -------------------------------------------------------------------------------------------------

    def open(self, number: int, kind: str, ttl: float, now: float) -> Session:
        self.operation("session", now, 3e-5)
        session = self.sessions[number] = Session(number, kind, ttl, now)
        self.meters.of_class(kind).opened += 1
        self.ttl[kind] = ttl
        return session

    def ended(self, number: int, reason: str) -> Session:
        session = self.sessions.pop(number)
        self.meters.of_class(session.kind).closed[reason] += 1
        return session

    def overdue(self, now: float) -> list[int]:
        return [number for number, s in self.sessions.items() if now - s.last_use > s.ttl]

    def hot_share(self) -> float:
        """Share of the lookups since the last scrape that asked for the commonest key."""
        total = sum(self._asked.values())
        share = max(self._asked.values()) / total if total else 0.0
        self._asked.clear()
        return share
