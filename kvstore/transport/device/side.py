"""A client's own device: memory on it that shards pull from, and the end of that memory."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket

from kvstore.layout import Layout
from kvstore.staging import Staging
from kvstore.transport.device.landing import Landing
from kvstore.transport.device.memory import Device, Exported, device_named
from kvstore.transport.device.peer import DevicePeer
from kvstore.transport.device.staging import DeviceStaging

STAGING_BYTES = 64 << 20
_log = logging.getLogger("kvstore.transport.device")

PART_S = 2.0
"""For shards to let go of our memory; after that it stays until this process ends (policy)."""


class DeviceSide:
    """`device` and a staging arena on it, whose slots are numbered behind those of the client's host staging arena."""

    def __init__(self, name: str, layout: Layout, host: Staging, blocks: int | None = None) -> None:
        """Raises `BadRequest` where there is no such device, or not so much memory."""
        self.device: Device = device_named(name)
        blocks = max(1, STAGING_BYTES // layout.block_bytes) if blocks is None else blocks
        self.staging = DeviceStaging(self.device, layout, blocks, first=len(host))
        exported = self.staging.memory.export()
        self.lent = Exported({**exported.words, "slots": blocks}, exported.fds)
        self._peers: list[DevicePeer] = []
        self.landing = Landing(self.device)

    def met(self, peer: DevicePeer) -> None:
        """A shard that has our memory open now, until its end of the connection closes."""
        self._peers = [known for known in self._peers if known.parting is None or not _over(known.parting)]
        self._peers.append(peer)

    async def leave(self) -> None:
        """Free our memory once no shard has it open: all connections were closed before, and each shard answers that
        with its own end when it has let go. One that is silent (stopped) keeps us from freeing it: what it may still
        read is left until this process ends."""
        waiting = [peer.parting for peer in self._peers if peer.parting is not None]
        loop = asyncio.get_running_loop()
        end = loop.time() + PART_S
        for nap in itertools.chain((0.001, 0.002, 0.004), itertools.repeat(0.01)):
            waiting = [connection for connection in waiting if not _over(connection)]
            if not waiting or loop.time() > end:
                break
            await asyncio.sleep(nap)
        if not waiting and all(peer.parting is not None for peer in self._peers):
            self.staging.close()
        else:
            _log.warning(
                "%d MiB on %s stay taken until this process ends: %d shards have not said that they let go of them",
                self.staging.memory.size >> 20,
                self.device.name,
                max(1, len(waiting)),
            )
        for connection in waiting:
            connection.close()
        self._peers = []


def _over(connection: socket.socket) -> bool:
    """Whether the other end has closed; our end is closed then, too."""
    if connection.fileno() < 0:
        return True
    try:
        said = connection.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        said = b""
    if not said:
        connection.close()
    return not said
