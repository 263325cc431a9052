"""A shard of this host whose pool lies on a device: headers and index mapped, the data copied off by its handle."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore.arena import Memory
from kvstore.errors import BadRequest, DeviceFailed, ShardUnavailable
from kvstore.header import HEADER_BYTES, Bytes
from kvstore.index import Index
from kvstore.layout import Layout
from kvstore.transport.device.arena import adopt_headers
from kvstore.transport.device.gather import worth_it
from kvstore.transport.device.holder import Holder
from kvstore.transport.device.memory import Device, DeviceMemory, Move
from kvstore.transport.device.moves import block_moves, host_moves
from kvstore.transport.near import NearPeer

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


class DevicePeer(NearPeer):
    """Reads go through one device (`device`): the client's own, or the one that the pool lies on. Any thread may read;
    the handle is closed when none does, and before the connection: its end tells the shard that nobody reads."""

    def __init__(
        self,
        facts: dict[str, Any],
        device: Device,
        pool: DeviceMemory,
        headers: Memory,
        index: Index,
        pidfd: int,
        connection: socket.socket,
        *,
        lends: bool = False,
        holder: Holder | None = None,
    ) -> None:
        """`lends`: the shard has memory of ours open. `holder`: the process that holds the pool, if not the shard."""
        super().__init__(facts, index, pidfd, connection)
        self._lends = lends
        self._holder = holder
        layout = Layout(**facts["layout"])
        self.device = device
        self.block_bytes = layout.block_bytes
        self._slot_bytes = layout.slot_bytes
        self._blocks = int(facts["blocks"])
        self._pool: DeviceMemory | None = pool
        self._memory = headers
        self._headers: Bytes = headers.bytes[: self._blocks * HEADER_BYTES].reshape(self._blocks, HEADER_BYTES)
        self._generations = self._headers.view(np.uint64)[:, 4]
        self._using = threading.Lock()
        self.parting: socket.socket | None = None
        """After `close`, where the shard has memory of ours open: it ends when the shard has let that go."""

    @classmethod
    def enter(
        cls, said: dict[str, Any], fds: list[int], connection: socket.socket, device: Device, *, lends: bool
    ) -> DevicePeer:
        """Open what the shard handed out: headers, index, pidfd, the mark of who holds the pool if that is another
        process (`held` in the device's words), and what its device needs beside the words. Takes over the descriptors
        once it returns. Raises `StagingRejected`, `BadRequest`."""
        if len(fds) < 3:
            raise BadRequest(f"the shard handed out {len(fds)} descriptors, and headers, index and pidfd are expected")
        blocks = int(said["blocks"])
        headers, _ = adopt_headers(fds[0], blocks)
        index = Index.attach(Memory.adopt(fds[1]))
        size = int(said["device"].get("size", 0))
        if size < blocks * Layout(**said["layout"]).block_bytes:
            raise BadRequest(f"the shard's memory of {size} bytes does not hold its {blocks} blocks")
        held = bool(said["device"].get("held"))
        if held and len(fds) < 4:
            raise BadRequest("the shard handed out no mark of the process that holds its pool")
        pool = device.open(said["device"], fds[3 + held :])
        holder = Holder(fds[3]) if held else None
        return cls(said, device, pool, headers, index, fds[2], connection, lends=lends, holder=holder)

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, slots: Ints, rows: Ints | None, out: Bytes) -> int:
        """See `Peer.read`; `out` is host memory."""
        if not len(slots):
            return 0
        self._take_headers(slots, rows, out)
        with self._open() as pool:
            room = out[:, HEADER_BYTES:]
            return self._move(host_moves(pool.address, slots, room, self.block_bytes, rows=rows, off=True))

    def read_onto(self, slots: Ints, rows: Ints, heads: Bytes, to: int, places: Ints) -> int:
        """As `read`, but the data goes device to device: slot `slots[i]` to block `places[i]` of the packed memory at
        address `to`; its header to `heads[rows[i]]` (`[m, ≥ 128]`)."""
        if not len(slots):
            return 0
        self._take_headers(slots, rows, heads)
        with self._open() as pool:
            moves = block_moves(to, places, pool.address, slots, self.block_bytes)
            gather = self.device.gather
            many = gather is not None and gather.usable and worth_it(len(moves), len(slots), self.block_bytes)
            if gather is None or not many or not gather.copy(to, places, pool.address, slots, self.block_bytes):
                self._move(moves)
            else:
                self._require_holder()
            return len(moves)

    @property
    def pool_bytes(self) -> int:
        """Of all blocks' data."""
        return self._blocks * self.block_bytes

    def copy_head(self, to: int, size: int) -> None:
        """The first bytes of the pool, whatever they are, to address `to`: what a probe times."""
        with self._open() as pool:
            self._move([Move(to, size, pool.address, size, size, 1)])

    def generations(self, slots: Ints) -> Words:
        found: Words = self._generations[slots]
        return found

    def _take_headers(self, slots: Ints, rows: Ints | None, out: Bytes) -> None:
        """Before the data: a header that is older than it fails its sums, or its second look at the generation."""
        lowest, highest = int(slots.min()), int(slots.max())
        if lowest < 0 or highest >= self._blocks:
            raise BadRequest(f"slots {lowest} … {highest} are not all in a pool of {self._blocks}")
        out[slice(len(slots)) if rows is None else rows, :HEADER_BYTES] = self._headers[slots]

    def _move(self, moves: list[Move]) -> int:
        try:
            self.device.move(moves)
        except DeviceFailed as error:
            if not self.alive():
                raise ShardUnavailable(f"shard {self.facts.get('shard')}: its process has ended") from None
            self._require_holder()
            raise error
        self._require_holder()
        return len(moves)

    def connected(self) -> bool:
        """See `NearPeer.connected`; a pool whose holder has ended is none."""
        return (self._holder is None or self._holder.there()) and super().connected()

    def _require_holder(self) -> None:
        """What was copied is the pool's only if who holds it is still there."""
        if self._holder is not None:
            self._holder.require(f"shard {self.facts.get('shard')}")

    @contextlib.contextmanager
    def _open(self) -> Iterator[DeviceMemory]:
        with self._using:
            if self._pool is None:
                raise ShardUnavailable(f"the connection to shard {self.facts.get('shard')} was closed")
            yield self._pool

    # --- its end ----------------------------------------------------------------------------------------------------

    def _let_go(self, connection: socket.socket) -> None:
        with self._using:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
        self._memory.close()
        if self._holder is not None:
            self._holder.close()
        if not self._lends:
            connection.close()
            return
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        self.parting = connection
