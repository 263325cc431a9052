"""The process beside a shard that has its NIXL agents: it lets clients read the pool, and pulls what they put.

It knows addresses and slots, not keys: the shard says what to pull and where to, into a landing arena that both map,
and believes nothing of it before it has summed it. UCX may abort this process when a client dies at a bad moment
(see the package's page); the shard then starts it again. It ends with its shard: when the socket to it does.

A pool on a device (`--device`) is in this process's own memory, since NIXL registers no other (ai-dynamo/nixl#154): the
shard opens it by its handle, as clients of the host do, and `pool` is only its headers. Such a pool ends with us.
"""

from __future__ import annotations

import argparse
import base64
import mmap
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvstore.errors import StoreError
from kvstore.header import HEADER_BYTES
from kvstore.transport.device.holder import Mark
from kvstore.transport.device.memory import DeviceMemory, device_named
from kvstore.transport.nixl import frames
from kvstore.transport.nixl.agent import Agent, Disconnected, Transfer, own_name, spans
from kvstore.transport.nixl.lanes import lanes_of
from kvstore.transport.nixl.library import has_hca, ucx_log
from kvstore.transport.nixl.owner import Moved, Owner


class Mapped:
    """An arena of slots, as this process has it mapped."""

    def __init__(self, fd: int, slots: int, slot_bytes: int, *, writable: bool) -> None:
        self.size = slots * slot_bytes
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(fd, self.size, mmap.MAP_SHARED, access)
        self.base = int(np.frombuffer(self._map, np.uint8).ctypes.data)


class Data:
    """The blocks of a pool on a device, packed. `gpu`: which card, as CUDA numbers it here; None: host memory."""

    def __init__(self, device: str, size: int) -> None:
        """Raises `BadRequest` where there is no such device, or not so much memory."""
        on = device_named(device)
        self.memory: DeviceMemory = on.allocate(size, lent=True)
        self.gpu: int | None = getattr(on, "ordinal", None)
        self.exported = self.memory.export()
        self.mark = Mark.new()
        """The thread that waits for the shard has it: it lasts as long as the process."""


class Mover:
    """Answers its shard until the socket ends."""

    def __init__(
        self, connection: socket.socket, pool: Mapped, landing: Mapped, slot_bytes: int, data: Data | None = None
    ) -> None:
        self._connection = connection
        self._landing = landing
        self._slot_bytes = slot_bytes
        self._clients: dict[int, tuple[str, int]] = {}
        self._writing = threading.Lock()
        self._pool = Owner("pool", serves=True)
        self._pulls = Owner("pull", serves=False)
        self._pool.call(lambda agent: agent.register(pool.base, pool.size))
        self._pulls.call(lambda agent: agent.register(landing.base, landing.size))
        if data is not None:
            on = data
            self._pool.call(lambda agent: agent.register(on.memory.address, on.memory.size, gpu=on.gpu))
        metadata = self._pool.call(lambda agent: agent.metadata)
        said: dict[str, Any] = {
            "ready": True,
            "agent": self._pool.name,
            "metadata": base64.b64encode(metadata).decode(),
            "base": pool.base,
        }
        if data is not None:
            said |= {"data": {"base": data.memory.address, "gpu": data.gpu}, "device": data.exported.words}
        frames.send_first(connection, said, [] if data is None else [data.mark.memory.fd, *data.exported.fds])

    def run(self) -> None:
        while (asked := frames.read_frame(self._connection)) is not None:
            try:
                answer = self._answer(asked)
            except StoreError as error:
                answer = {"code": error.code, "text": str(error)}
            if answer is not None:
                self._say({"id": asked["id"], **answer})

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        match asked["op"]:
            case "add":
                return self._add(asked)
            case "pull":
                self._pull(asked)
                return None
            case "drop":
                known = self._clients.pop(asked["client"], None)
                if known is not None:
                    self._pulls.forget(known[0])
                return {}
            case _:
                return {"lanes": [[lane.lane, lane.device] for lane in lanes_of(ucx_log())]}

    def _add(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Meet a client; its whole staging arena must be registered by it, or it is refused here and now."""
        name, base, slots = str(asked["agent"]), int(asked["base"]), int(asked["slots"])
        metadata = base64.b64decode(asked["metadata"])
        whole = spans(base, np.zeros(1, np.int64), slots, self._slot_bytes)
        known_as = own_name(name)
        try:
            self._pulls.meet(name, known_as, metadata).result()
            self._pulls.call(lambda agent: agent.drop(agent.prepare(known_as, whole)))
        except BaseException:
            self._pulls.forget(known_as)
            raise
        self._clients[asked["client"]] = (known_as, base)
        return {}

    def _pull(self, asked: dict[str, Any]) -> None:
        number = asked["id"]
        known = self._clients.get(asked["client"])
        if known is None:
            self._say({"id": number, "over": True, "text": "the client has gone"})
            return
        known_as, base = known
        pieces = np.asarray(asked["pieces"], np.int64).reshape(-1, 3)

        def make(agent: Agent) -> Transfer:
            local = spans(self._landing.base, pieces[:, 1], pieces[:, 2], self._slot_bytes)
            return agent.make(known_as, local, spans(base, pieces[:, 0], pieces[:, 2], self._slot_bytes))

        def over(said: Moved | Disconnected) -> None:
            if isinstance(said, Moved):
                self._say({"id": number, "descriptors": said.descriptors, "size": said.size, "seconds": said.seconds})
            else:
                self._say({"id": number, "over": True, "text": "the connection to the client's memory has ended"})

        self._pulls.read(make, over)

    def _say(self, said: dict[str, Any]) -> None:
        with self._writing:
            try:
                self._connection.sendall(frames.pack(said))
            except OSError:
                return  # the shard has gone: `run` sees it, too


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    for name in ("socket", "pool", "slots", "landing", "landing-slots", "slot-bytes"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", default="")
    parser.add_argument("--block-bytes", type=int, default=0)
    given = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its shard, not before
    connection = socket.socket(fileno=given.socket)
    try:
        data = Data(given.device, given.slots * given.block_bytes) if given.device else None
        # An HCA registers memory for writing; on other lanes nobody can write into a pool that is mapped read-only.
        pool = Mapped(given.pool, given.slots, HEADER_BYTES if data else given.slot_bytes, writable=has_hca())
        landing = Mapped(given.landing, given.landing_slots, given.slot_bytes, writable=True)
        mover = Mover(connection, pool, landing, given.slot_bytes, data)
    except StoreError as error:
        connection.sendall(frames.pack({"ready": False, "code": error.code, "text": str(error)}))
        return 1
    mover.run()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # nothing is to be tidied up, and destroying agents under their reads would harm their peers
