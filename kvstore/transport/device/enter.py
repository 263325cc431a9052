"""Coming in at the door of a shard whose pool lies on a device."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from kvstore.errors import BadRequest, ShardUnavailable, StagingRejected
from kvstore.transport.device.memory import Device, device_for
from kvstore.transport.device.peer import DevicePeer

if TYPE_CHECKING:
    from kvstore.transport.device.side import DeviceSide


def enter(said: dict[str, Any], fds: list[int], connection: socket.socket, own: DeviceSide | None) -> DevicePeer:
    """The peer behind a shard's welcome. Takes over the descriptors once it returns. Raises `ShardUnavailable` where
    the pool cannot be opened from here."""
    words = said["device"]
    who = f"shard {said.get('shard')}: its pool on {said.get('pool_on')}"
    try:
        device: Device = device_for(words) if own is None else own.device
        if device.kind != words.get("kind"):
            raise BadRequest(f"{device.name}, on which this client is, is no device of that kind")
        peer = DevicePeer.enter(said, fds, connection, device, lends=own is not None)
    except (BadRequest, StagingRejected) as error:
        raise ShardUnavailable(f"{who} cannot be read from here: {error}") from None
    if own is not None:
        own.met(peer)
    return peer
