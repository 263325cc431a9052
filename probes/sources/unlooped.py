"""Connections without an event loop: one target, asked once, by a program that has nothing else to do meanwhile.

asyncio takes longer to load than the scrape and its reading take together. The coroutines of a ``Fetcher`` run here
as they are: nothing in them ever waits but these blocking calls, each with what is left of the deadline.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from probes.sources.resolve import NameError_, lookup
from probes.sources.wire import READ, DeadlineError, Wire

if TYPE_CHECKING:
    import ssl

_T = TypeVar("_T")


def finished(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end, where nothing in it waits for an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        answer: _T = done.value
        return answer
    coroutine.close()
    raise RuntimeError("it waits for an event loop")


class Unlooped:
    """The network by blocking calls."""

    def __init__(self) -> None:
        self._until = 0.0

    @asynccontextmanager
    async def deadline(self, seconds: float) -> AsyncIterator[None]:
        self._until = time.monotonic() + seconds
        yield

    def left(self) -> float:
        """Seconds to the deadline; ``DeadlineError`` when there are none."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise DeadlineError
        return left

    async def resolve(self, host: str, port: int) -> list[str]:
        answer: list[tuple[list[str], NameError_ | None]] = []
        there = threading.Event()

        def settle(found: list[str], error: NameError_ | None) -> None:
            answer.append((found, error))
            there.set()

        known = lookup(host, port, settle)
        if known is not None:
            return known
        if not there.wait(self.left()):
            raise DeadlineError
        found, error = answer[0]
        if error is not None:
            raise error
        return found

    async def open(self, address: str, port: int, tls: ssl.SSLContext | None, host: str) -> Wire:
        connected = self._connected(address, port)
        try:
            # As asyncio does: a request in two parts must not wait for the other side's delayed acknowledgement.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                connected.settimeout(self.left())
                connected = tls.wrap_socket(connected, server_hostname=host)
        except TimeoutError:
            connected.close()
            raise DeadlineError from None
        except BaseException:
            connected.close()
            raise
        return _Socket(connected, self)

    def _connected(self, address: str, port: int) -> socket.socket:
        """A connection to an address; a socket of our own, as ``create_connection`` loads a codec for host names."""
        connected = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            connected.settimeout(self.left())
            connected.connect((address, port))
        except TimeoutError as error:
            connected.close()
            if error.errno:  # the system's own patience ended: this address does not answer
                raise
            raise DeadlineError from None
        except BaseException:
            connected.close()
            raise
        return connected


class _Socket:
    def __init__(self, connected: socket.socket, network: Unlooped) -> None:
        self._socket, self._network = connected, network

    @property
    def ended(self) -> bool:
        return bool(select.select([self._socket], [], [], 0)[0])

    async def read(self) -> bytes:
        self._socket.settimeout(self._network.left())
        try:
            return self._socket.recv(READ)
        except TimeoutError as error:
            if error.errno:
                raise
            raise DeadlineError from None

    def write(self, data: bytes) -> None:
        if not data:
            return
        self._socket.settimeout(self._network.left())
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise DeadlineError from None
        except OSError:
            return  # see ``Wire.write``

    def abort(self) -> None:
        with suppress(OSError):
            self._socket.close()
