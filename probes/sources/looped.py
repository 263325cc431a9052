"""Connections in asyncio's event loop: many targets side by side."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from probes.sources.resolve import NameError_, lookup
from probes.sources.wire import READ, DeadlineError, Wire

_LIMIT = 1 << 18


class Looped:
    """The network as the running event loop offers it."""

    @asynccontextmanager
    async def deadline(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise DeadlineError from None

    async def resolve(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[str]] = loop.create_future()

        def settle(found: list[str], error: NameError_ | None) -> None:
            if not answer.done():
                if error is None:
                    answer.set_result(found)
                else:
                    answer.set_exception(error)

        known = lookup(host, port, lambda *found: loop.call_soon_threadsafe(settle, *found))
        return known if known is not None else await answer

    async def open(self, address: str, port: int, tls: ssl.SSLContext | None, host: str) -> Wire:
        name = host if tls else None
        return _Streams(*await asyncio.open_connection(address, port, ssl=tls, server_hostname=name, limit=_LIMIT))


class _Streams:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @property
    def ended(self) -> bool:
        return self._reader.at_eof()

    async def read(self) -> bytes:
        return await self._reader.read(READ)

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def abort(self) -> None:
        self._writer.transport.abort()
