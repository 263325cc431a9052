"""`mapped`: the pool of a shard on this host is mapped into our address space, and a read is a copy.

Consecutive slots are copied as one slice; where nearly all runs are of one slot, one `take` gathers them (its `mode`
must not be `raise`: that buffers the whole answer first).
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore import door
from kvstore.arena import Arena, Memory
from kvstore.deadline import Deadline
from kvstore.errors import BadRequest, LayoutMismatch, ShardUnavailable, StoreError, decode
from kvstore.header import Bytes
from kvstore.index import Index
from kvstore.layout import Layout

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_TAKE_BELOW = 2.0
"""Mean slots a run below which one `take` beats a slice copy a run (measured for 16 KiB blocks)."""


class MappedPeer:
    """A shard's pool and index, mapped read-only, and its pidfd."""

    def __init__(
        self, facts: dict[str, Any], arena: Arena, index: Index, pidfd: int, connection: socket.socket
    ) -> None:
        self.facts = facts
        self.when_dead: Callable[[], None] | None = None
        self.arena = arena
        self.index: Index | None = index
        self._slots = arena.slots
        self._generations = arena.headers["generation"]
        self._pidfd = pidfd
        self._connection = connection
        # epoll, since several threads may ask one at once.
        self._watch = select.epoll()
        self._watch.register(pidfd, select.EPOLLIN)
        self._both = select.epoll()
        self._both.register(pidfd, select.EPOLLIN)
        self._both.register(connection.fileno(), select.EPOLLIN | select.EPOLLRDHUP)

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

    def alive(self) -> bool:
        return self._pidfd >= 0 and _silent(self._watch)

    def connected(self) -> bool:
        """One system call; the door says nothing after its welcome, so anything to read there is its end."""
        return self._pidfd >= 0 and _silent(self._both)

    def close(self) -> None:
        """Say goodbye; the maps go when nobody looks at them any more."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
            self._watch.close()
            self._both.close()
            self._connection.close()
            self.arena.close()
            if self.index is not None:
                self.index.memory.close()


class MappedTransport:
    """Goes through the doors of shards on this host."""

    name = "mapped"

    def __init__(self) -> None:
        self._staging: Arena | None = None

    def register(self, arena: Arena) -> None:
        self._staging = arena

    async def connect(
        self, described: dict[str, Any], layout: dict[str, Any], name: str, deadline: Deadline
    ) -> MappedPeer:
        if self._staging is None:
            raise BadRequest("register a staging arena before connecting")
        path = str(described.get("door", ""))
        hello = {"protocol": door.PROTOCOL, "layout": layout, "name": name}
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            async with asyncio.timeout(deadline.left_s):
                await _knock(connection, path)
                await door.send(connection, hello, [self._staging.memory.fd])
                said, fds = await door.receive(connection)
            return _enter(said, fds, connection)
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


def _silent(watch: select.epoll) -> bool:
    try:
        return not watch.poll(0)
    except ValueError:  # closed by the client's loop while another thread was about to ask
        return False


async def _knock(connection: socket.socket, path: str) -> None:
    while True:
        try:
            connection.connect(path)
            return
        except BlockingIOError:  # its queue is full: unix(7) says try again
            await asyncio.sleep(0.005)


def _enter(said: dict[str, Any], fds: list[int], connection: socket.socket) -> MappedPeer:
    """Map what the shard handed out. Takes over the descriptors."""
    try:
        if "error" in said:
            raise _refused(said)
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
