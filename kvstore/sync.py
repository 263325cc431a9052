"""The client for plain code: a loop of its own in a thread of its own; quick reads happen on the caller's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kvstore import messages as m
from kvstore.client import DEADLINE_MS, Client
from kvstore.errors import ShardUnavailable
from kvstore.handle import SessionHandle
from kvstore.header import Bytes, Words
from kvstore.keys import Keys
from kvstore.layout import Layout
from kvstore.locations import Blocks, Locations
from kvstore.traced import span_of, within
from kvstore.transport import Ints

T = TypeVar("T")


class SyncSession:
    """A `SessionHandle` for plain code."""

    def __init__(self, client: SyncClient, handle: SessionHandle) -> None:
        self._client = client
        self._handle = handle

    def __int__(self) -> int:
        return self._handle.number

    @property
    def number(self) -> int:
        return self._handle.number

    @property
    def returned(self) -> bool:
        return self._handle.returned

    def close(self, *, forget: bool = False) -> None:
        self._client.run(self._handle.close(forget=forget))

    def release(self) -> None:
        """Hold it no more, but let it live until its TTL ends."""
        self._client.call_soon(self._handle.release)

    def __enter__(self) -> SyncSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class SyncClient:
    """`Client` without `await`; see there for arguments and errors. May be called from several threads."""

    def __init__(
        self, targets: str | Path | Sequence[str], layout: Layout, *, deadline_ms: int = DEADLINE_MS, **options: Any
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kvstore-client", daemon=True)
        self._thread.start()
        try:
            self.client = self.run(Client.connect(targets, layout, deadline_ms=deadline_ms, **options))
        except BaseException:
            self._end()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, done on the client's loop."""
        if not self._thread.is_alive():
            work.close()
            raise ShardUnavailable("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # also Ctrl-C: nothing goes on behind the caller's back
            future.cancel()
            raise

    def call_soon(self, call: Any) -> None:
        self._loop.call_soon_threadsafe(call)

    def close(self) -> None:
        """May be called twice."""
        if self._thread.is_alive():
            self.run(self.client.close())
            self._end()

    def _end(self) -> None:
        # On its own thread: the caller's may run a loop of its own.
        asyncio.run_coroutine_threadsafe(self._loop.shutdown_asyncgens(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def layout(self) -> Layout:
        return self.client.layout

    def buffer(self, n: int) -> Bytes:
        return self.client.buffer(n)

    def lookup(self, keys: Keys, **options: Any) -> Locations:
        return self.run(self.client.lookup(keys, **options))

    def get(
        self,
        what: Keys | Locations,
        out: Bytes | None = None,
        *,
        min_clock: int | Words = 0,
        min_valid: int | Ints = 0,
        verify: bool | None = None,
        deadline_ms: int | None = None,
    ) -> Blocks:
        """As `Client.get`. The first attempt is made on this thread: no hop to the loop and back where it suffices."""
        needs: dict[str, Any] = {"min_clock": min_clock, "min_valid": min_valid, "verify": verify}
        with span_of("kv.get", what):
            found = self._get_here(what, out, **needs)
            if found is not None:
                return found
            with within():
                return self.run(self.client.get(what, out, deadline_ms=deadline_ms, **needs))

    def _get_here(self, what: Keys | Locations, out: Bytes | None, **needs: Any) -> Blocks | None:
        """The first attempt, if it is enough."""
        quick = self.client.get_quick(what, out, **needs)
        if quick is not None:
            return quick
        if self.client.shards.afar:
            return None
        fetch = self.client.fetch(what, out, **needs)
        try:
            if isinstance(what, Locations):
                fetch.from_locations(what)
            else:
                fetch.attempt()
        except ShardUnavailable:
            return None
        return self.client.finish(fetch) if fetch.done else None

    def put(self, keys: Keys, blocks: npt.NDArray[Any], **options: Any) -> m.Published:
        return self.run(self.client.put(keys, blocks, **options))

    def append(self, session: int | SyncSession, keys: Keys, blocks: npt.NDArray[Any], **options: Any) -> m.Published:
        return self.run(self.client.append(int(session), keys, blocks, **options))

    def match_tail(
        self, session: int | SyncSession, keys: Keys, digests: npt.NDArray[np.uint8], **options: Any
    ) -> tuple[int, Locations]:
        return self.run(self.client.match_tail(int(session), keys, digests, **options))

    def remove(self, keys: Keys, **options: Any) -> npt.NDArray[np.bool_]:
        return self.run(self.client.remove(keys, **options))

    def renew(self, located: Locations, lease_ms: int, **options: Any) -> None:
        self.run(self.client.renew(located, lease_ms, **options))

    def release(self, located: Locations, **options: Any) -> None:
        self.run(self.client.release(located, **options))

    def open_session(self, session_class: str = "default", **options: Any) -> SyncSession:
        return SyncSession(self, self.run(self.client.open_session(session_class, **options)))
