"""What a shard knows of the other shards: it pings each once a second."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvstore import wire
from kvstore.errors import BadRequest
from kvstore.messages import Envelope, Ping, Pong

if TYPE_CHECKING:
    import grpc.aio

INTERVAL_S = 1.0
UP_FOR_S = 3.0
"""A peer is up for so long after its last answer: three heartbeats (policy)."""
PING_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class PeerState:
    """`heartbeat_age_s` None: it never answered. `pending`: pings that it still owes an answer."""

    peer: str
    up: bool
    heartbeat_age_s: float | None
    pending: int


class _Peer:
    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.heard: float | None = None
        self.pending: set[asyncio.Task[None]] = set()
        self.channel: grpc.aio.Channel | None = None


class Peers:
    """Heartbeats to peers by name (their shard number) and address; `watch` runs until cancelled."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}

    def meet(self, addresses: dict[str, str]) -> None:
        """These are the other shards now."""
        for name, address in addresses.items():
            known = self._peers.get(name)
            if known is None or known.address != address:
                self._peers[name] = _Peer(name, address)

    def states(self) -> list[PeerState]:
        now = time.monotonic()
        return [
            PeerState(
                peer.name,
                peer.heard is not None and now - peer.heard < UP_FOR_S,
                None if peer.heard is None else now - peer.heard,
                len(peer.pending),
            )
            for peer in self._peers.values()
        ]

    async def watch(self) -> None:
        try:
            while True:
                for peer in self._peers.values():
                    task = asyncio.create_task(self._ping(peer))
                    peer.pending.add(task)
                    task.add_done_callback(peer.pending.discard)
                await asyncio.sleep(INTERVAL_S)
        finally:
            await self._close()

    async def _ping(self, peer: _Peer) -> None:
        import grpc
        import grpc.aio

        if peer.channel is None:
            peer.channel = grpc.aio.insecure_channel(peer.address, [("grpc.max_reconnect_backoff_ms", 1000)])
        call: Any = peer.channel.unary_unary(wire.method_path(Ping))
        request = wire.pack_request(Envelope(deadline_ms=int(PING_DEADLINE_S * 1000)), Ping())
        with contextlib.suppress(grpc.aio.AioRpcError, BadRequest):
            _, answer = wire.unpack_reply(await call(request, timeout=PING_DEADLINE_S))
            if isinstance(answer, Pong) and str(answer.shard) == peer.name:
                peer.heard = time.monotonic()

    async def _close(self) -> None:
        for peer in self._peers.values():
            for task in peer.pending:
                task.cancel()
            if peer.channel is not None:
                await peer.channel.close()
