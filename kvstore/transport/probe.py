"""How fast a peer's pool is really read from here: one short copy when we connect, remembered."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvstore.errors import BadRequest, DeviceFailed
from kvstore.transport.device.peer import DevicePeer
from kvstore.transport.mapped import MappedPeer
from kvstore.transport.near import NearPeer

LANES = ("memfd", "cuda_ipc", "cuda_host")
"""What a copy took: shared host memory; device to device; off a device into host memory. On the wire by their place."""
PROBE_BYTES = 4 << 20
"""About a hundred microseconds to a millisecond of copying (policy)."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """`lane` of `LANES`."""

    lane: str
    bytes_per_second: float


def probe(peer: NearPeer, *, onto: bool) -> Bandwidth | None:
    """One copy from the beginning of the pool, whatever lies there, after one that warms up. `onto`: onto the client's
    own device. None where there is nothing to copy, or no room to copy to."""
    if isinstance(peer, MappedPeer):
        return _timed("memfd", *_host_copy(peer))
    if not isinstance(peer, DevicePeer):
        return None
    try:
        return _on_device(peer) if onto else _off_device(peer)
    except (BadRequest, DeviceFailed):  # no room: that says nothing about the peer, and reads will tell of a failure
        return None


def _host_copy(peer: MappedPeer) -> tuple[Callable[[], object], int]:
    slots = peer.arena.slots
    count = max(1, min(len(slots), PROBE_BYTES // slots.shape[1]))
    room = np.empty((count, slots.shape[1]), np.uint8)
    return lambda: np.copyto(room, slots[:count]), room.nbytes


def _on_device(peer: DevicePeer) -> Bandwidth | None:
    size = min(PROBE_BYTES, peer.pool_bytes)
    room = peer.device.allocate(size)
    try:
        lane = "cuda_ipc" if peer.device.kind == "cuda" else "memfd"
        return _timed(lane, lambda: peer.copy_head(room.address, size), size)
    finally:
        room.close()


def _off_device(peer: DevicePeer) -> Bandwidth | None:
    size = min(PROBE_BYTES, peer.pool_bytes)
    room = peer.device.host(size)
    lane = "cuda_host" if peer.device.kind == "cuda" else "memfd"
    return _timed(lane, lambda: peer.copy_head(int(room.ctypes.data), size), size)


def _timed(lane: str, copy: Callable[[], object], size: int) -> Bandwidth | None:
    copy()
    began = time.perf_counter()
    copy()
    seconds = time.perf_counter() - began
    return Bandwidth(lane, size / seconds) if seconds > 0 and size else None
