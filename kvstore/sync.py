"""The client for plain code: a loop of its own in a thread of its own; quick reads happen on the caller's thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kvstore import messages as m
from kvstore.client import DEADLINE_MS, Client
from kvstore.client_device import DeviceBlocks
from kvstore.deadline import Deadline
from kvstore.errors import ShardUnavailable, StoreError
from kvstore.forks import require_process
from kvstore.handle import SessionHandle
from kvstore.header import Bytes, Words
from kvstore.keys import Keys
from kvstore.layout import Layout
from kvstore.locations import Blocks, Locations
from kvstore.staging import Staged
from kvstore.traced import span_of, within
from kvstore.transport import Ints
from kvstore.transport.device.rows import DeviceRows

T = TypeVar("T")

CLOSE_S = 10.0
"""For a client's goodbye to shards that may not answer (policy)."""


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """As usual, but for one thing: gRPC has a poller for all loops of a process, and on ours it finds that another one,
    of a client that was closed, has ended."""
    ended = isinstance(context.get("exception"), RuntimeError) and "PollerCompletionQueue" in str(context.get("handle"))
    if not ended:
        loop.default_exception_handler(context)


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
        self._process = os.getpid()
        self._ending = False
        self._submitting = threading.RLock()
        """What is submitted under it reaches the loop before its end does. Reentrant: a finalizer may `call_soon` while
        its thread is submitting."""
        self._under_way: set[asyncio.Task[Any]] = set()
        self._opened: Client | None = None
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_tell)
        self._thread = threading.Thread(target=self._live, name="kvstore-client", daemon=True)
        self._thread.start()
        try:
            self._opened = self.run(Client.connect(targets, layout, deadline_ms=deadline_ms, **options))
        except BaseException:
            self.close()
            raise
        self.client = self._opened

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, done on the client's loop. Raises `ShardUnavailable` if the client is closed before."""
        try:
            require_process(self._process)
            with self._submitting:
                if self._ending:
                    raise ShardUnavailable("the client is closed")
                future = asyncio.run_coroutine_threadsafe(self._done(work), self._loop)
        except StoreError:
            work.close()
            raise
        try:
            return future.result()
        except CancelledError:
            raise ShardUnavailable("the client was closed before it had an answer; it may have been done") from None
        except BaseException:  # also Ctrl-C: nothing goes on behind the caller's back
            future.cancel()
            raise

    def call_soon(self, call: Callable[[], None]) -> None:
        """On the client's loop; nothing happens once it is closed."""
        with self._submitting:
            if not self._ending:
                self._loop.call_soon_threadsafe(call)

    def close(self) -> None:
        """May be called twice, and by several threads: the client is closed when it returns. What other threads still
        wait for ends with `ShardUnavailable`."""
        if self._process != os.getpid():
            return  # a fork's copy: neither thread nor connections are its own
        with self._submitting:
            if not self._ending:
                self._ending = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _done(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            return await work
        finally:
            self._under_way.discard(task)

    def _live(self) -> None:
        """The thread of the loop, to its end."""
        loop = self._loop
        try:
            loop.run_forever()
            loop.run_until_complete(self._wind_up())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    async def _wind_up(self) -> None:
        await asyncio.sleep(0)  # what was submitted last has begun
        await _end_all(self._under_way)
        if self._opened is not None:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._opened.close()
        await _end_all(asyncio.all_tasks() - {asyncio.current_task()})

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
        if deadline_ms is not None:
            Deadline(deadline_ms)  # or the caller hears of it only when it matters
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
        if len(fetch.spans()) > 1:
            return None
        try:
            if isinstance(what, Locations):
                fetch.from_locations(what)
            else:
                fetch.attempt()
        except ShardUnavailable:
            return None
        return self.client.finish(fetch) if fetch.done else None

    def device_rows(self, n: int) -> DeviceRows:
        return self.client.device_rows(n)

    def stage_on_device(self, n: int, **options: Any) -> Staged:
        return self.run(self.client.stage_on_device(n, **options))

    def get_on_device(self, what: Keys | Locations, into: Any, **options: Any) -> DeviceBlocks:
        self.client.side.device.settle()  # streams are a thread's, and the loop's thread has others
        return self.run(self.client.get_on_device(what, into, **options))

    def put(self, keys: Keys, blocks: npt.NDArray[Any] | Staged, **options: Any) -> m.Published:
        return self.run(self.client.put(keys, blocks, **options))

    def append(self, session: int | SyncSession, keys: Keys, blocks: npt.NDArray[Any], **options: Any) -> m.Published:
        return self.run(self.client.append(session, keys, blocks, **options))

    def match_tail(
        self, session: int | SyncSession, keys: Keys, digests: npt.NDArray[np.uint8], **options: Any
    ) -> tuple[int, Locations]:
        return self.run(self.client.match_tail(session, keys, digests, **options))

    def remove(self, keys: Keys, **options: Any) -> npt.NDArray[np.bool_]:
        return self.run(self.client.remove(keys, **options))

    def renew(self, located: Locations, lease_ms: int, **options: Any) -> None:
        self.run(self.client.renew(located, lease_ms, **options))

    def release(self, located: Locations, **options: Any) -> None:
        self.run(self.client.release(located, **options))

    def open_session(self, session_class: str = "default", **options: Any) -> SyncSession:
        return SyncSession(self, self.run(self.client.open_session(session_class, **options)))


async def _end_all(tasks: set[Any]) -> None:
    """Cancel `tasks`; returns when they have ended, or have had time to."""
    for task in list(tasks):
        task.cancel()
    if tasks:
        await asyncio.wait(list(tasks), timeout=CLOSE_S)
