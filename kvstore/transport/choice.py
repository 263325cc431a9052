"""Which transport reaches a shard: mapped where its door can be reached from here, else nixl."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstore.arena import Arena
from kvstore.deadline import Deadline
from kvstore.errors import BadRequest, ShardUnavailable
from kvstore.header import Bytes
from kvstore.layout import Layout
from kvstore.transport import Peer
from kvstore.transport.mapped import MappedTransport

if TYPE_CHECKING:
    from kvstore.transport.device.cuda import CudaDevice
    from kvstore.transport.device.side import DeviceSide
    from kvstore.transport.near import NearPeer
    from kvstore.transport.nixl.client import NixlTransport
    from kvstore.transport.nixl.lanes import Lane
    from kvstore.transport.probe import Bandwidth

KINDS = ("auto", "mapped", "nixl")


class Choice:
    """A transport made of both. `kind`: one of `KINDS`, `own`: our device; raises `BadRequest` for another kind."""

    def __init__(self, kind: str, layout: Layout, own: DeviceSide | None = None) -> None:
        if kind not in KINDS:
            raise BadRequest(f"no transport {kind!r}; there are {', '.join(KINDS)}")
        self.name = kind
        self._layout = layout
        self._staging: Arena | None = None
        self._mapped = MappedTransport()
        self._nixl: NixlTransport | None = None
        self._own = own
        self._bandwidths: dict[str, Bandwidth | None] = {}
        if own is not None:
            self._mapped.lend(own)

    def register(self, arena: Arena) -> None:
        self._staging = arena
        self._mapped.register(arena)

    def buffer(self, n: int) -> Bytes | None:
        """Memory for a get of `n` blocks that some transport wants rather than any other; None: none does."""
        if self._nixl is not None:
            return self._nixl.buffer(n)
        return self._mapped.buffer(n, self._layout.slot_bytes)

    def card_buffer(self, card: CudaDevice, n: int) -> Bytes | None:
        """Memory on a GPU that reads over the network can land in; None where there is none such."""
        return None if self._nixl is None else self._nixl.card_buffer(card, n)

    async def connect(self, described: dict[str, Any], layout: dict[str, Any], name: str, deadline: Deadline) -> Peer:
        """See `Transport.connect`."""
        if self.name == "mapped" or (self.name == "auto" and _has_door(described)):
            try:
                peer = await self._mapped.connect(described, layout, name, deadline)
                peer.bandwidth = self._measured(str(described.get("reached")), peer)
                return peer
            except ShardUnavailable:
                if self.name == "mapped" or not described.get("nixl") or deadline.passed:
                    raise
        elif self.name == "auto" and not described.get("nixl"):
            raise ShardUnavailable(
                f"shard {described.get('shard')} ({described.get('reached')}) is not on this host and does not offer "
                "nixl: start it with --nixl"
            )
        return await self._far().connect(described, layout, name, deadline)

    def _measured(self, address: str, peer: NearPeer) -> Bandwidth | None:
        """Once a shard: one that comes back is as near as it was."""
        if self._bandwidths.get(address) is None:
            from kvstore.transport.probe import probe

            self._bandwidths[address] = probe(peer, onto=self._own is not None)
        return self._bandwidths[address]

    def lanes(self) -> list[Lane]:
        """The lanes that reads by NIXL take, as UCX said when it chose them."""
        return [] if self._nixl is None else self._nixl.lanes()

    async def leave(self) -> None:
        """To be awaited before `close`, once all peers are closed."""
        if self._own is not None:
            await self._own.leave()
        if self._nixl is not None:
            await self._nixl.leave()

    def close(self) -> None:
        self._mapped.close()
        if self._nixl is not None:
            self._nixl.close()

    def _far(self) -> NixlTransport:
        if self._nixl is None:
            from kvstore.transport.nixl.client import NixlTransport

            self._nixl = NixlTransport(self._layout)
            if self._staging is not None:
                self._nixl.register(self._staging)
        return self._nixl


def _has_door(described: dict[str, Any]) -> bool:
    path = str(described.get("door", ""))
    return bool(path) and Path(path).is_socket()
