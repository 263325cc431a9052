"""How the bytes of a request get to a shard, and those of its answer back.

Within a host: frames on a Unix socket (`frames.py`). Between hosts: gRPC (`rpc.py`), whose Python side alone takes
about a millisecond a call, several times what an index needs to find a thousand keys (`kvstore bench lookup`).
"""

from __future__ import annotations

from typing import Any, Protocol


class Calls(Protocol):
    """A connection over which a shard is asked. For one event loop."""

    closed: bool
    """True once it will carry nothing any more."""

    async def call(self, message: type[Any], request: bytes, timeout_s: float) -> bytes:
        """The packed reply to the packed `request`, which is a `message`. Raises `TimedOut`, `Broken`, `Unfit`."""
        ...

    async def close(self) -> None: ...


class TimedOut(Exception):  # noqa: N818 - not an error of the store: what it means depends on what was asked
    """No answer in time; the request may have been done."""


class Broken(Exception):  # noqa: N818
    """The connection ended before an answer came; the request may have been done."""


class Unfit(Exception):  # noqa: N818
    """A request that this connection does not carry: too large, or of a kind that the shard does not know."""
