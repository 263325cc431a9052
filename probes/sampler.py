"""One cycle: every source once, side by side, none of them able to hold up the others."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from probes.series import SeriesStore
from probes.sources.base import Source, SourceStatus

_GRACE_S = 0.05


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one cycle brought: its time and how every source stands, in the order of the sources."""

    time_ms: int
    statuses: tuple[SourceStatus, ...]


class Sampler:
    """Drives the sources. All cycles of a sampler run in one event loop, as the sources keep their connections."""

    def __init__(self, store: SeriesStore, sources: Sequence[Source], interval_ms: int = 1000) -> None:
        self.store = store
        self.sources = list(sources)
        self.interval_ms = interval_ms
        self._running: dict[int, asyncio.Task[SourceStatus]] = {}
        self._since: dict[int, float] = {}

    async def cycle(self, now_ms: int, patience_s: float | None = None) -> Cycle:
        """Ask every source that is not still busy, and wait for the answers at most ``patience_s`` (the interval).

        A source that has not answered by then goes on within its own deadline and is not asked again meanwhile; until
        it answers, its status here says for how long it has been silent.
        """
        for at, source in enumerate(self.sources):
            if at not in self._running:
                self._running[at] = asyncio.create_task(source.collect(now_ms), name=source.target)
                self._since[at] = time.monotonic()
        if self._running:
            wait_s = self.interval_ms / 1000 if patience_s is None else patience_s
            await asyncio.wait(self._running.values(), timeout=wait_s + _GRACE_S)
        return Cycle(now_ms, tuple(self._settle(at, now_ms) for at in range(len(self.sources))))

    @property
    def statuses(self) -> tuple[SourceStatus, ...]:
        """How every source stood after its latest finished attempt."""
        return tuple(source.status for source in self.sources)

    async def close(self) -> None:
        """Stop what is under way and close the sources; never waits for a target."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()
        for source in self.sources:
            with contextlib.suppress(OSError):
                await source.close()

    def _settle(self, at: int, now_ms: int) -> SourceStatus:
        task = self._running[at]
        source = self.sources[at]
        silent = time.monotonic() - self._since[at]
        if not task.done():
            return replace(source.status, state="timeout", error=f"no answer yet after {silent:.1f} s", time_ms=now_ms)
        del self._running[at]
        if task.cancelled():
            return replace(source.status, state="gone", error="the attempt was cancelled", time_ms=now_ms)
        failure = task.exception()
        if failure is not None:
            words = f"internal error: {type(failure).__name__}: {failure}"
            return replace(source.status, state="gone", error=words, time_ms=now_ms)
        return task.result()
