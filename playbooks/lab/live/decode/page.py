"""A decode loop as a store's page sees it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from kvstore.meters import Meters
from kvstore.page import Identity, LogFigures, PeerFigures, PoolFigures, SessionFigures, TrafficFigures
from playbooks.lab.live.decode.loop import DecodeLoop


class LoopSource:
    """A `PageSource`: the pool as it was last read, and no sessions, log, peers or clients."""

    def __init__(self, number: int, loop: DecodeLoop) -> None:
        self._loop = loop
        layout = loop.layout
        self.identity = Identity(
            shard=str(number),
            version=version("kvscope"),
            model_name=layout.model_id,
            dtype=layout.dtype,
            block_tokens=layout.block_tokens,
            window_tokens=layout.window_tokens,
            block_bytes=layout.block_bytes * layout.layers,
            placement="none",
            durability="none",
            layout=layout.fingerprint,
        )

    @property
    def meters(self) -> Meters:
        return self._loop.meters

    def pool_figures(self) -> PoolFigures:
        return self._loop.figures

    def session_figures(self) -> Sequence[SessionFigures]:
        return ()

    def log_figures(self) -> LogFigures | None:
        return None

    def peer_figures(self) -> Sequence[PeerFigures]:
        return ()

    def traffic_figures(self) -> TrafficFigures:
        return TrafficFigures(leases=0, pins=0, clients=0)
