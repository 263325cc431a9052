"""`mapped`: the pool of a shard on this host is mapped into our address space, and a read is a copy.

Consecutive slots are copied as one slice; where nearly all runs are of one slot, one `take` gathers them (its `mode`
must not be `raise`: that buffers the whole answer first).
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvstore import door
from kvstore.arena import Arena, Memory
from kvstore.deadline import Deadline
from kvstore.errors import BadRequest, LayoutMismatch, ShardUnavailable, StoreError, decode
from kvstore.header import Bytes
from kvstore.index import Index
from kvstore.layout import Layout
from kvstore.transport.near import NearPeer

if TYPE_CHECKING:
    from kvstore.transport.device.memory import Device
    from kvstore.transport.device.side import DeviceSide

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_TAKE_BELOW = 2.0
"""Mean slots a run below which one `take` beats a slice copy a run (measured for 16 KiB blocks)."""


class MappedPeer(NearPeer):
    """A shard's pool and index, mapped read-only, and its pidfd."""

    def __init__(
        self, facts: dict[str, Any], arena: Arena, index: Index, pidfd: int, connection: socket.socket
    ) -> None:
        super().__init__(facts, index, pidfd, connection)
        self.arena = arena
        self._slots = arena.slots
        self._generations = arena.headers["generation"]

    def read(self, slots: Ints, rows: Ints | None, out: Bytes) -> int:
        """See `Peer.read`; a slot outside the pool is a `BadRequest`."""
        count = len(slots)
        if count == 0:
            return 0
        if count == 1:
            slot = int(slots[0])
            self._check(slot, slot)
            out[0 if rows is None else rows[0]] = self._slots[slot]
            return 1
        joined = slots[1:] - slots[:-1] == 1
        if rows is None and joined.all():
            first = int(slots[0])
            self._check(first, first + count - 1)
            out[:count] = self._slots[first : first + count]
            return 1
        self._check(int(slots.min()), int(slots.max()))
        if rows is not None:
            joined &= rows[1:] - rows[:-1] == 1
        starts = np.concatenate(([0], np.flatnonzero(~joined) + 1))
        if rows is None and count < _TAKE_BELOW * len(starts):
            np.take(self._slots, slots, axis=0, out=out[:count], mode="clip")
            return len(starts)
        self._copy_runs(slots, rows, starts, out)
        return len(starts)

    def _copy_runs(self, slots: Ints, rows: Ints | None, starts: Ints, out: Bytes) -> None:
        lengths = np.diff(np.append(starts, len(slots)))
        to = starts if rows is None else rows[starts]
        source = self._slots
        for a, b, n in zip(slots[starts].tolist(), to.tolist(), lengths.tolist(), strict=True):
            out[b : b + n] = source[a : a + n]

    def _check(self, lowest: int, highest: int) -> None:
        if lowest < 0 or highest >= len(self._slots):
            raise BadRequest(f"slots {lowest} … {highest} are not all in a pool of {len(self._slots)}")

    def generations(self, slots: Ints) -> Words:
        found: Words = self._generations[slots]
        return found

    def _let_go(self, connection: socket.socket) -> None:
        super()._let_go(connection)
        self.arena.close()


class MappedTransport:
    """Goes through the doors of shards on this host."""

    name = "mapped"

    def __init__(self) -> None:
        self._staging: Arena | None = None
        self._own: DeviceSide | None = None
        self._gpu: Device | None = None
        """That of the shard that was met last, where its pool lies on one."""

    def register(self, arena: Arena) -> None:
        self._staging = arena

    def buffer(self, n: int, slot_bytes: int) -> Bytes | None:
        """Page-locked memory where pools lie on a GPU: copies off it are several times as fast into that."""
        return None if self._gpu is None or not n else self._gpu.host(n * slot_bytes).reshape(n, slot_bytes)

    def lend(self, own: DeviceSide) -> None:
        """Our device, and memory on it that shards may read, for those whose pool lies on a device."""
        self._own = own

    async def connect(
        self, described: dict[str, Any], layout: dict[str, Any], name: str, deadline: Deadline
    ) -> NearPeer:
        if self._staging is None:
            raise BadRequest("register a staging arena before connecting")
        path = str(described.get("door", ""))
        lent = None if self._own is None else self._own.lent
        fds = [self._staging.memory.fd, *([] if lent is None else lent.fds)]
        hello = {"protocol": door.PROTOCOL, "layout": layout, "name": name, "lends": {} if lent is None else lent.words}
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            async with asyncio.timeout(deadline.left_s):
                await _knock(connection, path)
                await door.send(connection, hello, fds)
                said, handed = await door.receive(connection)
            peer = _enter(said, handed, connection, self._own)
            device: Device | None = getattr(peer, "device", None)
            self._gpu = device if device is not None and device.kind == "cuda" else self._gpu
            return peer
        except TimeoutError:
            connection.close()
            raise ShardUnavailable(f"the shard's door {path} did not answer within its deadline") from None
        except OSError as error:
            connection.close()
            why = error.strerror or str(error)
            raise ShardUnavailable(f"the shard's door {path} cannot be reached from here: {why}") from None
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._staging = None


async def _knock(connection: socket.socket, path: str) -> None:
    while True:
        try:
            connection.connect(path)
            return
        except BlockingIOError:  # its queue is full: unix(7) says try again
            await asyncio.sleep(0.005)


def _enter(said: dict[str, Any], fds: list[int], connection: socket.socket, own: DeviceSide | None) -> NearPeer:
    """Map what the shard handed out. Takes over the descriptors."""
    try:
        if "error" in said:
            raise _refused(said)
        if "device" in said:
            from kvstore.transport.device.enter import enter

            return enter(said, fds, connection, own)
        if len(fds) != 3:
            raise BadRequest(f"the shard handed out {len(fds)} descriptors instead of three")
        layout = Layout(**said["layout"])
        arena = Arena(Memory.adopt(fds[0]), layout.slot_bytes, layout.block_bytes)
        index = Index.attach(Memory.adopt(fds[1]))
        return MappedPeer(said, arena, index, fds[2], connection)
    except BaseException:
        door.close_all(fds)
        raise


def _refused(said: dict[str, Any]) -> StoreError:
    error = decode(int(said["error"]), str(said.get("text", "")))
    if isinstance(error, LayoutMismatch):
        error.field = str(said.get("field", ""))
    return error
