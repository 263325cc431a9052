"""The door of a shard: a Unix socket through which a client hands in its staging arena and gets the pool to map.

One packet (SOCK_SEQPACKET) is one JSON message, descriptors beside it (SCM_RIGHTS). The client says hello – protocol
version, layout, name, memory of a device that it `lends` – with its sealed staging memfd; the shard answers with its
facts and three descriptors: pool (or its headers, where the pool lies on a device: `device` then says how that is
opened), index and its own pidfd. The connection then stays open and silent: its end is the client's end. Only processes
of the shard's own user are let in (SO_PEERCRED).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstore.arena import Arena, Memory
from kvstore.clients import Clients, Connected
from kvstore.errors import BadRequest, LayoutMismatch, ShardUnavailable, StagingRejected, StoreError
from kvstore.layout import Layout
from kvstore.security import Refusals

if TYPE_CHECKING:
    from kvstore.transport.device.arena import DeviceArena

PROTOCOL = 1
MAX_PACKET = 65_536
HELLO_TIMEOUT_S = 5.0
_MAX_NAME = 64
_MOST_SAYING_HELLO = 64
_BACK_OFF_S = 0.2
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_MOST_DESCRIPTORS = 8


class Door:
    """Listens at `path`. `facts()` is what every client is told; `fds` are pool, index and pidfd."""

    def __init__(
        self,
        path: Path,
        layout: Layout,
        clients: Clients,
        fds: list[int],
        facts: Callable[[], dict[str, Any]],
        left: Callable[[Connected], None],
        refusals: Refusals | None = None,
        device: DeviceArena | None = None,
    ) -> None:
        """`device`: the pool, where it lies on one; `fds` then go on with what its handle needs."""
        self.path = path
        self._device = device
        self._layout = layout
        self._clients = clients
        self._fds = fds
        self._facts = facts
        self._left = left
        self._refusals = refusals or Refusals()
        self._socket: socket.socket | None = None
        self._spare: socket.socket | None = None
        """To be closed for one more descriptor."""
        self._parting: set[socket.socket] = set()
        self._closed_until: asyncio.TimerHandle | None = None
        self._visits: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Bind and listen; a socket that a dead shard left behind is replaced. Raises `OSError`."""
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            clear_the_way(self.path, socket.SOCK_SEQPACKET)
            bound.bind(str(self.path))
            self.path.chmod(0o600)
            bound.listen(128)
        except BaseException as error:
            bound.close()
            if isinstance(error, OSError):
                error.filename = str(self.path)
            raise
        self._socket = bound
        self._spare = socket.socket(socket.AF_UNIX)
        asyncio.get_running_loop().add_reader(bound.fileno(), self._knock)

    async def close(self) -> None:
        """No visitors any more; those inside lose their connection."""
        if self._closed_until is not None:
            self._closed_until.cancel()
        if self._spare is not None:
            self._spare.close()
            self._spare = None
        for connection in self._parting:
            connection.close()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
            self.path.unlink(missing_ok=True)
        for visit in list(self._visits):
            visit.cancel()
        if self._visits:
            await asyncio.wait(self._visits)

    def _knock(self) -> None:
        assert self._socket is not None
        try:
            connection, _ = self._socket.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:
                self._send_away(self._socket)
            return  # else it has gone again
        if len(self._visits) >= self._clients.most + _MOST_SAYING_HELLO:
            self._turn_down(connection, "too many stand at its door: try again in a moment")
            return
        connection.setblocking(False)
        visit = asyncio.get_running_loop().create_task(self._visit(connection))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    def _send_away(self, listening: socket.socket) -> None:
        """There are no descriptors left. Who knocks hears so, by the one kept for that; then nobody is let in for a
        moment: the loop has better things to do than to find the same again and again."""
        if self._spare is not None:
            self._spare.close()
            self._spare = None
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                self._turn_down(connection, "it has no file descriptors left for another client (ulimit -n)")
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening.fileno())
        self._closed_until = loop.call_later(2 * _BACK_OFF_S, self._open_again, listening)

    def _open_again(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self._spare = self._spare or socket.socket(socket.AF_UNIX)
        asyncio.get_running_loop().add_reader(listening.fileno(), self._knock)

    def _turn_down(self, connection: socket.socket, why: str) -> None:
        """It is told why, and hung up on when it has had time to hear it."""
        connection.setblocking(False)
        pid, uid = peer_of(connection)
        self._refusals.note("door", f"process {pid} (user {uid}) at the door", why)
        with contextlib.suppress(OSError):
            connection.send(json.dumps(refusal(ShardUnavailable(f"the shard lets nobody in: {why}"))).encode())
        self._parting.add(connection)
        asyncio.get_running_loop().call_later(_BACK_OFF_S, self._hang_up, connection)

    def _hang_up(self, connection: socket.socket) -> None:
        self._parting.discard(connection)
        with connection, contextlib.suppress(OSError):
            connection.recv(MAX_PACKET)  # what is not read resets the connection, and our words with it

    async def _visit(self, connection: socket.socket) -> None:
        client: Connected | None = None
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                client = await self._hello(connection)
            if client is not None:
                await readable(connection)  # nothing more is ever said: this is its end
                leaving, client = client, None
                self._leave(leaving)
                await leaving.over()  # who lent us memory of a device waits for our end of the connection
        except (TimeoutError, OSError):
            pass
        finally:
            if client is not None:
                self._leave(client)
            connection.close()

    def _leave(self, client: Connected) -> None:
        self._clients.leave(client)
        self._left(client)

    async def _hello(self, connection: socket.socket) -> Connected | None:
        pid, uid = peer_of(connection)
        try:
            if uid != os.geteuid():
                raise BadRequest("the client runs as another user")
            said, fds = await receive(connection)
            client = self._admit(said, fds, pid)
        except StoreError as error:
            self._refusals.note("door", f"process {pid} (user {uid}) at the door", str(error))
            await send(connection, refusal(error))
            return None
        try:
            await send(connection, {**self._facts(), "client": client.number}, self._fds)
        except BaseException:
            self._clients.leave(client)
            raise
        return client

    def _admit(self, said: dict[str, Any], fds: list[int], pid: int) -> Connected:
        """Takes over the descriptors: the staging arena's stays open with the client, all others are closed."""
        memory: Memory | None = None
        try:
            theirs = _checked_hello(said, fds, on_device=self._device is not None)
            self._layout.require_same(theirs)
            memory = Memory.adopt(fds[0])
            staging = Arena(memory, self._layout.slot_bytes, self._layout.block_bytes)
            memory.close()  # the map has a descriptor of its own, and they are scarce
            fds = fds[1:]
            if self._device is not None and said.get("lends"):
                staging = self._device.beside(staging, said["lends"], fds)
            else:
                close_all(fds)
            fds = []
            return self._clients.admit(str(said.get("name", ""))[:_MAX_NAME], pid, staging)
        except BaseException as error:
            memory = None
            close_all(fds)
            if isinstance(error, OSError):  # it cannot be mapped
                raise StagingRejected(f"staging arena: {error.strerror}") from None
            raise


def _checked_hello(said: dict[str, Any], fds: list[int], *, on_device: bool) -> Layout:
    if said.get("protocol") != PROTOCOL:
        raise BadRequest(f"the client speaks protocol {said.get('protocol')!r}, this shard {PROTOCOL}")
    if not isinstance(said.get("layout"), dict):
        raise BadRequest("hello without a layout")
    lends = said.get("lends", {})
    if not isinstance(lends, dict) or (on_device and "lends" not in said):
        raise BadRequest("the pool lies on a device, and this client does not know what that is")
    if not fds or (len(fds) != 1 and not lends):
        raise StagingRejected(f"hello with {len(fds)} descriptors: one staging arena is expected")
    return Layout.from_json(json.dumps(said["layout"]))


def refusal(error: StoreError) -> dict[str, Any]:
    said: dict[str, Any] = {"error": error.code, "text": str(error)}
    if isinstance(error, LayoutMismatch):
        said["field"] = error.field
    return said


async def send(connection: socket.socket, said: dict[str, Any], fds: list[int] | None = None) -> None:
    """One packet; raises `OSError` when the peer is gone."""
    data = json.dumps(said).encode()
    while True:
        try:
            socket.send_fds(connection, [data], fds or [], socket.MSG_NOSIGNAL)
            return
        except BlockingIOError:
            await _ready(connection, write=True)


async def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """One packet and its descriptors (the caller's to close). Raises `BadRequest` for anything but a JSON object,
    `ConnectionResetError` at the end."""
    await readable(connection)
    data, fds, flags, _ = socket.recv_fds(connection, MAX_PACKET, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise BadRequest(f"a door message longer than {MAX_PACKET} bytes or {_MOST_DESCRIPTORS} descriptors")
        if not data:
            raise ConnectionResetError("the other side closed the door")
        try:
            said = json.loads(data)
        except (ValueError, RecursionError):
            raise BadRequest("a door message is a JSON object") from None
        if not isinstance(said, dict):
            raise BadRequest("a door message is a JSON object")
    except BaseException:
        close_all(fds)
        raise
    return said, fds


async def readable(connection: socket.socket) -> None:
    await _ready(connection, write=False)


async def _ready(connection: socket.socket, *, write: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)

    def tell() -> None:
        if not ready.done():
            ready.set_result(None)

    add(connection.fileno(), tell)
    try:
        await ready
    finally:
        remove(connection.fileno())


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def close_all(fds: list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def clear_the_way(path: Path, kind: socket.SocketKind) -> None:
    """Remove a socket of that kind at which nobody listens any more; what else is there stays: bind will say so."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, kind) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:
            pass
