"""A session as its client holds it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from kvstore.errors import StoreError
from kvstore.messages import OpenSession

if TYPE_CHECKING:
    from types import TracebackType

    from kvstore.client import Client


class SessionHandle:
    """A session on all shards under one number. An async context: leaving it closes the session.

    It renews itself on every shard three times per TTL while it is held (unless `renew` is False); a process that dies
    renews nothing, and the session ends by its TTL. `returned` False: it was asked for again, and its TTL had ended.
    """

    def __init__(
        self, client: Client, number: int, session_class: str, ttl_ms: int, returned: bool, renew: bool
    ) -> None:
        self.number = number
        self.session_class = session_class
        self.ttl_ms = ttl_ms
        self.returned = returned
        self.held = True
        self._client = client
        self._renewing = client.keep(self._renew()) if renew else None

    def __int__(self) -> int:
        return self.number

    async def __aenter__(self) -> SessionHandle:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, *, forget: bool = False) -> None:
        """End it on every shard: what only it held becomes evictable, or goes at once with `forget`."""
        self.release()
        await self._client.close_session(self.number, forget=forget)

    def release(self) -> None:
        """Hold it no more, but let it live until its TTL ends: another process may go on with its number."""
        self.held = False
        if self._renewing is not None:
            self._renewing.cancel()

    def opening(self) -> OpenSession:
        """What tells one more shard of it."""
        return OpenSession(self.number, self.session_class, self.ttl_ms, create=True)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self.ttl_ms / 3000)
            with contextlib.suppress(StoreError):  # a shard that is away now is asked again next time
                await self._client.renew_session(self.number)
