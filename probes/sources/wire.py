"""What a request goes over: connections, names and deadlines, with an event loop or without one."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import ssl

READ = 1 << 16
"""Bytes that are asked for at a time."""


class DeadlineError(Exception):
    """The time that was set with ``Network.deadline`` is over."""


class Wire(Protocol):
    """One open connection."""

    @property
    def ended(self) -> bool:
        """The other side has closed it, or said something that was not asked for."""
        ...

    async def read(self) -> bytes:
        """The next bytes (at most ``READ``), none at the end; ``OSError`` when the connection breaks."""
        ...

    def write(self, data: bytes) -> None:
        """Send; a connection that breaks meanwhile is told by the next ``read``."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class Network(Protocol):
    """How a ``Fetcher`` gets its connections."""

    def deadline(self, seconds: float) -> AbstractAsyncContextManager[None]:
        """What runs inside ends with ``DeadlineError`` when the seconds are over."""
        ...

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of a host, as text; ``probes.sources.resolve.NameError_`` when there is none."""
        ...

    async def open(self, address: str, port: int, tls: ssl.SSLContext | None, host: str) -> Wire:
        """Connect; ``OSError`` (``ssl.SSLError`` of a handshake) when that fails."""
        ...
