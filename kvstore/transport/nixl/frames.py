"""What a shard and its mover say to each other: JSON objects over a socket pair, each behind its length."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("<I")
MAX_FRAME = 64 << 20


def pack(said: dict[str, Any]) -> bytes:
    data = json.dumps(said, separators=(",", ":")).encode()
    return _LENGTH.pack(len(data)) + data


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
