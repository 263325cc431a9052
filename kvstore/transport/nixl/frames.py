"""What a shard and its mover say to each other: JSON objects over a socket pair, each behind its length."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

from kvstore.door import readable

_LENGTH = struct.Struct("<I")
MAX_FRAME = 64 << 20
_MOST_DESCRIPTORS = 4


def pack(said: dict[str, Any]) -> bytes:
    data = json.dumps(said, separators=(",", ":")).encode()
    return _LENGTH.pack(len(data)) + data


def send_first(connection: socket.socket, said: dict[str, Any], fds: list[int]) -> None:
    """The first object, with descriptors beside it. Raises `OSError`."""
    data = pack(said)
    sent = socket.send_fds(connection, [data], fds) if fds else 0
    connection.sendall(data[sent:])


async def first_frame(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """What `send_first` has sent (None at the end), from a socket that does not block; the descriptors are the caller's
    to close."""
    fds: list[int] = []

    async def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            await readable(connection)
            part, more, _, _ = socket.recv_fds(connection, size - len(data), _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
            fds.extend(more)
            if not part:
                raise EOFError
            data += part
        return data

    try:
        size = _LENGTH.unpack(await exactly(_LENGTH.size))[0]
        found: dict[str, Any] = json.loads(await exactly(min(size, MAX_FRAME)))
    except (EOFError, OSError):
        return None, fds
    return found, fds


def read_frame(connection: socket.socket) -> dict[str, Any] | None:
    """The next object; None at the end."""
    head = _exactly(connection, _LENGTH.size)
    if head is None:
        return None
    data = _exactly(connection, min(_LENGTH.unpack(head)[0], MAX_FRAME))
    return None if data is None else json.loads(data)


async def next_frame(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next object; None at the end."""
    try:
        head = await reader.readexactly(_LENGTH.size)
        data = await reader.readexactly(min(_LENGTH.unpack(head)[0], MAX_FRAME))
    except (asyncio.IncompleteReadError, OSError):
        return None
    found: dict[str, Any] = json.loads(data)
    return found


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = []
    while size:
        try:
            part = connection.recv(min(size, 1 << 20))
        except OSError:
            return None
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
