"""A served shard as a `PageSource`: its own figures, and what its server knows of clients and peers.

How a server adopts it::

    source = ShardSource(self.shard, self.settings, self.clients, self.peers)
    self._page = await serve_metrics(StoreCollector(source), self.settings.host, self.settings.metrics_port)
    self.metrics_url = self._page.url
    ...
    await self._page.close()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from kvstore.meters import Meters
from kvstore.page.figures import (
    Identity,
    LogFigures,
    PeerFigures,
    PoolFigures,
    SessionFigures,
    TrafficFigures,
    Transport,
)
from kvstore.transport.probe import LANES

if TYPE_CHECKING:
    from kvstore.clients import Clients
    from kvstore.peers import Peers
    from kvstore.security import Refusals
    from kvstore.settings import Settings
    from kvstore.shard import Shard


def _mapped(device: str) -> Transport:
    """Blocks are read from the shard's arena, mapped into the reader: host memory, or a device's by its handle."""
    return Transport("mapped", "cuda_ipc" if device.startswith("cuda") else "memfd", device)


class ShardSource:
    """Reads a shard and its server; to be called from their thread."""

    def __init__(
        self,
        shard: Shard,
        settings: Settings,
        clients: Clients,
        peers: Peers,
        ways: Callable[[], Sequence[Transport]] = tuple,
        refusals: Refusals | None = None,
    ) -> None:
        """`ways`: transports in use beside `mapped`."""
        self._shard = shard
        self._clients = clients
        self._peers = peers
        self._identity = identity_of(settings)
        self._ways = ways
        self._refusals = refusals

    @property
    def identity(self) -> Identity:
        ways = self._ways()
        return replace(self._identity, transports=(*self._identity.transports, *ways)) if ways else self._identity

    @property
    def meters(self) -> Meters:
        return self._shard.meters

    def pool_figures(self) -> PoolFigures:
        return self._shard.pool_figures()

    def session_figures(self) -> Sequence[SessionFigures]:
        return self._shard.session_figures()

    def log_figures(self) -> LogFigures | None:
        log = self._shard.log
        if log is None:
            return None
        segments = log.segments
        return LogFigures(log.pending_records, segments["active"], segments["sealed"], segments["spare"])

    def peer_figures(self) -> Sequence[PeerFigures]:
        return [PeerFigures(p.peer, p.up, p.heartbeat_age_s, p.pending) for p in self._peers.states()]

    def traffic_figures(self) -> TrafficFigures:
        shard, clients = self._shard, self._clients
        return TrafficFigures(
            shard.leases,
            shard.pins,
            len(clients),
            clients.oldest_heartbeat_s(),
            shard.hot_key_share(),
            dict(self._refusals.counts) if self._refusals is not None else {},
            shard.core.ownership.epoch,
            shard.lease_left_s(),
            {(name, LANES[lane]): float(rate) for (name, lane), rate in clients.bandwidths().items()},
        )


def identity_of(settings: Settings) -> Identity:
    """What does not change while the shard runs."""
    layout = settings.layout
    return Identity(
        shard=str(settings.shard),
        version=_version(),
        model_name=layout.model_id,
        dtype=layout.dtype,
        block_tokens=layout.block_tokens,
        window_tokens=layout.window_tokens,
        block_bytes=layout.block_bytes,
        placement=settings.placement,
        durability=settings.durability.name.lower().replace("_", "+"),
        layout=layout.fingerprint,
        transports=(_mapped(settings.device),),
    )


def _version() -> str:
    try:
        return version("kvscope")
    except PackageNotFoundError:
        return "unknown"
