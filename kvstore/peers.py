"""What a shard knows of the other shards: it pings each once a second."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvstore import wire
from kvstore.errors import BadRequest
from kvstore.messages import Envelope, Ping, Pong

if TYPE_CHECKING:
    import grpc.aio

    from kvstore.security import Access

INTERVAL_S = 1.0
UP_FOR_S = 3.0
"""A peer is up for so long after its last answer: three heartbeats (policy)."""
PING_DEADLINE_S = 10.0
_log = logging.getLogger("kvstore.peers")


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
        self.complained = False


class Peers:
    """Heartbeats to peers by name (their shard number) and address; `watch` runs until cancelled."""

    def __init__(self, access: Access | None = None) -> None:
        self._access = access
        self._peers: dict[str, _Peer] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def meet(self, addresses: dict[str, str]) -> None:
        """These are the other shards now."""
        for name, known in list(self._peers.items()):
            if addresses.get(name) != known.address:
                self._forget(self._peers.pop(name))
        for name, address in addresses.items():
            if name not in self._peers:
                self._peers[name] = _Peer(name, address)

    def _forget(self, peer: _Peer) -> None:
        task = asyncio.get_running_loop().create_task(_end(peer))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

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

        from kvstore.calls.rpc import channel_to

        if peer.channel is None:
            try:
                peer.channel = channel_to(peer.address, self._access)
            except BadRequest as error:
                self._complain(peer, str(error))
                return
        call: Any = peer.channel.unary_unary(wire.method_path(Ping))
        request = wire.pack_request(Envelope(deadline_ms=int(PING_DEADLINE_S * 1000)), Ping())
        try:
            _, answer = wire.unpack_reply(await call(request, timeout=PING_DEADLINE_S))
        except BadRequest:
            return
        except grpc.aio.AioRpcError as error:
            await self._wonder(peer, error)
            return
        if isinstance(answer, Pong) and str(answer.shard) == peer.name:
            peer.heard = time.monotonic()
            peer.complained = False

    async def _wonder(self, peer: _Peer, error: grpc.aio.AioRpcError) -> None:
        """Whether it is certificates or tokens that keep a peer from answering."""
        if error.code().name == "UNAUTHENTICATED":
            self._complain(peer, error.details() or "it does not let us in")
        elif error.code().name == "UNAVAILABLE" and self._access is not None and not peer.complained:
            from kvstore.security.probe import tls_trouble

            trouble = await tls_trouble(peer.address, self._access, INTERVAL_S) if self._access.tls else None
            if trouble is not None:
                self._complain(peer, trouble)

    def _complain(self, peer: _Peer, why: str) -> None:
        """Once, until it answers again."""
        if not peer.complained:
            peer.complained = True
            _log.warning("no heartbeat from shard %s (%s): %s", peer.name, peer.address, why)

    async def _close(self) -> None:
        for peer in self._peers.values():
            await _end(peer)


async def _end(peer: _Peer) -> None:
    for task in list(peer.pending):
        task.cancel()
    if peer.channel is not None:
        await peer.channel.close()
