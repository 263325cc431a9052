"""A shard's parts without its server: a real pool, meters that were used, and figures for the rest."""

from __future__ import annotations

import numpy as np

from kvstore.arena import Arena
from kvstore.bitmap import SlotBitmap
from kvstore.header import sums
from kvstore.index import Index
from kvstore.layout import Layout
from kvstore.meters import Meters
from kvstore.page import Identity, LogFigures, PeerFigures, PoolFigures, SessionFigures, TrafficFigures, Transport
from kvstore.pool import Pool

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
LAYOUT = Layout("tiny", head_dim=8)
NOW_MS = 1_000_000


class Source:
    """A `PageSource` with `blocks` slots, some of them published, held and leased."""

    def __init__(
        self, blocks: int = 600, shard: str = "0", durability: str = "log", bitmap: SlotBitmap | None = None
    ) -> None:
        self.meters = Meters()
        self.identity = Identity(
            shard=shard,
            version="0.2.0",
            model_name=LAYOUT.model_id,
            dtype=LAYOUT.dtype,
            block_tokens=LAYOUT.block_tokens,
            window_tokens=LAYOUT.window_tokens,
            block_bytes=LAYOUT.block_bytes,
            placement="uniform",
            durability=durability,
            layout="5f0c",
            transports=(Transport("mapped", "memfd"),),
        )
        self.pool = Pool(
            Arena.create("kv-test-pool", blocks, LAYOUT.slot_bytes, LAYOUT.block_bytes, pool=True),
            Index.create(blocks),
            bitmap=bitmap,
        )
        self.durability = durability
        self._next = 0

    def put(self, n: int, *, valid: int = LAYOUT.block_tokens) -> np.ndarray:
        """Publish `n` blocks of `valid` tokens each; their slots."""
        slots = self.pool.reserve(n, now_ms=NOW_MS)
        keys = np.zeros((n, 4), np.uint64)
        keys[:, 0] = np.arange(self._next + 1, self._next + n + 1)
        self._next += n
        self.pool.publish(
            slots,
            keys,
            np.ones(n, np.uint64),
            np.full(n, valid, np.int64),
            np.zeros((n, 24), np.uint8),
            sums(self.pool.arena.data[slots]),
            now_ms=NOW_MS,
        )
        return slots

    def pool_figures(self) -> PoolFigures:
        return PoolFigures.of(self.pool, NOW_MS)

    def session_figures(self) -> list[SessionFigures]:
        return [
            SessionFigures("chat", active=3, idle=1, blocks=40, ttl_s=1800.0, idle_s=np.array([1.0, 2.0, 3.0, 90.0]))
        ]

    def log_figures(self) -> LogFigures | None:
        return None if self.durability == "none" else LogFigures(2, 1, 4, 3)

    def peer_figures(self) -> list[PeerFigures]:
        return [PeerFigures("1", True, 0.4, 2), PeerFigures("2", False, None, 0)]

    def traffic_figures(self) -> TrafficFigures:
        return TrafficFigures(leases=5, pins=1, clients=2, client_heartbeat_age_s=0.3, hot_key_share=0.25)


def used(blocks: int = 600, shard: str = "0") -> Source:
    """A source with something in every part of its page."""
    source = Source(blocks, shard)
    held, leased = source.put(100), source.put(50)
    source.put(30, valid=3)
    source.pool.hold(held)
    source.pool.lease(leased, NOW_MS + 5_000)
    source.pool.reserve(20, now_ms=NOW_MS)
    meters = source.meters
    put = meters.operations["put"]
    put.inflight += 1
    put.done(0.003, "ok", TRACE)
    meters.lookup_blocks["hit"] += 70
    meters.put_blocks += 180
    meters.allocated(100, 2)
    meters.put_stage_seconds["log"].observe(0.0002, TRACE)
    meters.wal_flush_seconds.observe(0.0002, TRACE)
    meters.session("chat").opened += 4
    meters.session("chat").return_gap_seconds.observe(12.0)
    meters.synced("bitmap.count", 0.25)
    return source
