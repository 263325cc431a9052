"""What a page needs beside the counters: gauges that are read from the store's parts when somebody scrapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from kvstore.meters import Meters

if TYPE_CHECKING:
    from kvstore.pool import Pool

IDLE_QUANTILES = (0.5, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class Transport:
    """One way in which blocks move: implementation (mapped, nixl), lane (memfd, tcp, rc …), device ("" for none)."""

    transport: str
    lane: str
    device: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this shard is and how it is laid out; does not change while it runs."""

    shard: str
    version: str
    model_name: str
    dtype: str
    block_tokens: int
    window_tokens: int
    block_bytes: int
    placement: str
    durability: str
    layout: str
    """The layout's fingerprint."""
    transports: tuple[Transport, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """A pool at one moment.

    `states` `[n]` as `pool.State`; `valid` `[n]` filled token slots, −1 where nothing is published; `free_runs` `[r]`
    lengths of the runs of free blocks. `device_reads`, `sync_seconds`: by site, what bitmap and block tables counted
    themselves; the page adds them to the meters'.
    """

    states: npt.NDArray[np.uint8]
    valid: npt.NDArray[np.int64]
    free_runs: npt.NDArray[np.int64]
    device_reads: Mapping[str, int] = field(default_factory=dict)
    sync_seconds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, pool: Pool, now_ms: int) -> PoolFigures:
        """Read a pool; to be called from its owner's thread."""
        bitmap = pool.bitmap
        return cls(
            pool.states(now_ms), pool.fill(), pool.free_runs()[1], dict(bitmap.device_reads), dict(bitmap.sync_seconds)
        )


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """The live sessions of one class. `idle_s` `[sessions]`: seconds since the last use of each."""

    session_class: str
    active: int
    idle: int
    blocks: int
    ttl_s: float
    idle_s: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LogFigures:
    """A log at one moment: records that wait for their flush, and segments."""

    pending_records: int
    active_segments: int
    sealed_segments: int
    spare_segments: int


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """Another shard, as this one sees it. `heartbeat_age_s` None: never heard of it."""

    peer: str
    up: bool
    heartbeat_age_s: float | None
    pending_operations: int


@dataclass(frozen=True, slots=True)
class TrafficFigures:
    """Leases, pins and clients. None where there is nothing to tell: no client, no lookup in the last interval."""

    leases: int
    pins: int
    clients: int
    client_heartbeat_age_s: float | None = None
    hot_key_share: float | None = None
    refusals: Mapping[str, int] = field(default_factory=dict)
    """Who was not let in, by reason; nothing on the page before the first one."""
    epoch: int = 0
    """Of the membership; 0 where that never changes, and then neither this nor the lease is on the page."""
    lease_left_s: float = 0.0
    """Of the shard's own lease; below 0 when it is over."""
    bandwidths: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Bytes per second by client and lane, as clients measured them when they connected."""


class PageSource(Protocol):
    """What a shard offers to have a page. All methods are called from the shard's own thread and must be quick.

    ::

        class Shard:
            meters: Meters
            identity: Identity
            def pool_figures(self): return PoolFigures.of(self.pool, now_ms())
            def session_figures(self): return [SessionFigures(...) for each class]
            def log_figures(self): return None if there is no log else LogFigures(...)
            def peer_figures(self): return [PeerFigures(...) for each other shard]
            def traffic_figures(self): return TrafficFigures(leases, pins, clients, ...)
    """

    @property
    def meters(self) -> Meters: ...

    @property
    def identity(self) -> Identity: ...

    def pool_figures(self) -> PoolFigures: ...

    def session_figures(self) -> Sequence[SessionFigures]: ...

    def log_figures(self) -> LogFigures | None: ...

    def peer_figures(self) -> Sequence[PeerFigures]: ...

    def traffic_figures(self) -> TrafficFigures: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading of a `PageSource`: everything that must be read in the shard's thread."""

    identity: Identity
    pool: PoolFigures
    sessions: tuple[SessionFigures, ...]
    log: LogFigures | None
    peers: tuple[PeerFigures, ...]
    traffic: TrafficFigures

    @classmethod
    def of(cls, source: PageSource) -> Snapshot:
        """Read `source` now."""
        return cls(
            source.identity,
            source.pool_figures(),
            tuple(source.session_figures()),
            source.log_figures(),
            tuple(source.peer_figures()),
            source.traffic_figures(),
        )
