"""Calls within a host: `length u32 · number u32 · packed message` on a Unix stream socket, answers in any order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from kvstore import wire
from kvstore.calls import Broken, TimedOut, Unfit
from kvstore.calls.turns import Turns
from kvstore.door import clear_the_way, peer_of
from kvstore.security import Refusals

_HEAD = struct.Struct("<II")
_NUMBERS = 1 << 32
_MOST_OPEN = 1024
"""Requests of one connection under way, above which no more are read (policy)."""

Answer = Callable[[bytes], Awaitable[bytes]]


class Splitter:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The number and message of every frame that is whole now. Raises `ValueError` for one over the limit."""
        if self._rest:
            self._rest += data
            data = bytes(self._rest) if self._whole() else b""
            if not data:
                return
            self._rest.clear()
        at = 0
        while at + _HEAD.size <= len(data):
            length, number = _HEAD.unpack_from(data, at)
            if length > wire.MAX_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            end = at + _HEAD.size + length
            if end > len(data):
                break
            yield number, data[at + _HEAD.size : end]
            at = end
        self._rest += data[at:]

    def _whole(self) -> bool:
        """Whether what was kept back, with what came, holds a frame (or shows that it never may)."""
        if len(self._rest) < _HEAD.size:
            return False
        length = int(_HEAD.unpack_from(self._rest)[0])
        return length > wire.MAX_BYTES or len(self._rest) >= _HEAD.size + length


def frame(number: int, message: bytes) -> bytes:
    return _HEAD.pack(len(message), number) + message


class FrameCalls(asyncio.Protocol):
    """The asking side (`Calls`)."""

    def __init__(self) -> None:
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._splitter = Splitter()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    @classmethod
    async def connect(cls, path: str, timeout_s: float) -> FrameCalls:
        """Raises `OSError`, `TimeoutError`."""
        async with asyncio.timeout(timeout_s):
            _, calls = await asyncio.get_running_loop().create_unix_connection(cls, path)
        return calls

    async def call(self, message: type[Any], request: bytes, timeout_s: float) -> bytes:
        if len(request) > wire.MAX_BYTES:
            raise Unfit(f"a request of {len(request)} bytes: at most {wire.MAX_BYTES} go at once")
        if self.closed or self._transport is None:
            raise Broken("the connection was closed")
        loop = asyncio.get_running_loop()
        number = next(self._numbers) % _NUMBERS
        answer: asyncio.Future[bytes] = loop.create_future()
        self._waiting[number] = answer
        timer = loop.call_later(timeout_s, _too_late, answer)
        try:
            self._transport.write(frame(number, request))
            return await answer
        finally:
            timer.cancel()
            self._waiting.pop(number, None)

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end("the connection was closed")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for number, reply in self._splitter.feed(data):
                answer = self._waiting.get(number)
                if answer is not None and not answer.done():
                    answer.set_result(reply)
        except ValueError as error:
            self._end(f"the shard sent {error}")
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._end("the connection was lost" if error is None else f"the connection was lost: {error}")

    def _end(self, why: str) -> None:
        self.closed = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(Broken(why))


def _too_late(answer: asyncio.Future[bytes]) -> None:
    if not answer.done():
        answer.set_exception(TimedOut())


class FrameServer:
    """The answering side, at `path`, for processes of this user: `answer` makes a packed reply of a packed request.

    `turns`: shared with others who ask the same shard.
    """

    def __init__(
        self, path: Path, answer: Answer, refusals: Refusals | None = None, turns: Turns | None = None
    ) -> None:
        self.path = path
        self.answer = answer
        self.refusals = refusals or Refusals()
        self.turns = turns or Turns()
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    async def start(self) -> None:
        """Bind and listen. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        clear_the_way(self.path, socket.SOCK_STREAM)
        self._server = await loop.create_unix_server(lambda: _Connection(self, self._connections), self.path)
        self.path.chmod(0o600)

    async def stop(self) -> None:
        """Nobody is let in any more; those inside lose their connection once their answers are written."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for connection in list(self._connections):
            connection.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


class _Connection(asyncio.Protocol):
    """One client. Its requests begin in turn with others' and are answered side by side; no more are read while it does
    not take its answers."""

    def __init__(self, server: FrameServer, all_of: set[_Connection]) -> None:
        self._answer = server.answer
        self._refusals = server.refusals
        self._turns = server.turns
        self._who = ""
        self._all_of = all_of
        self._splitter = Splitter()
        self._transport: asyncio.Transport | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._full = False
        self._reading = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._all_of.add(self)
        pid, uid = peer_of(transport.get_extra_info("socket"))
        self._who = f"process {pid} (user {uid})"
        if uid != os.geteuid():
            self._refusals.note("door", self._who, "it runs as another user")
            transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for number, request in self._splitter.feed(data):
                self._turns.begin(self, len(request), functools.partial(self._begin, number, request))
        except ValueError as error:
            self._refusals.note("request", self._who, f"{error}: at most {wire.MAX_BYTES} go at once")
            self.close()
        self._pace()

    def pause_writing(self) -> None:
        self._full = True
        self._pace()

    def resume_writing(self) -> None:
        self._full = False
        self._pace()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._all_of.discard(self)
        self._turns.forget(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _begin(self, number: int, request: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._reply(number, request))
        self._open.add(task)
        task.add_done_callback(self._done)

    async def _reply(self, number: int, request: bytes) -> None:
        reply = await self._answer(request)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(number, reply))

    def _done(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        self._pace()

    def _pace(self) -> None:
        read = not self._full and len(self._open) + self._turns.waiting(self) < _MOST_OPEN
        if self._transport is None or self._transport.is_closing() or read is self._reading:
            return
        self._reading = read
        if read:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
