"""One cycle: every source once, side by side, none of them able to hold up the others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from probes.records import dataclass
from probes.series import SeriesStore
from probes.sources.base import Source, SourceStatus
from probes.sources.discovery import Discovery

if TYPE_CHECKING:
    import asyncio

_GRACE_S = 0.05


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one cycle brought: its time and how every source stands, in the order of the sources."""

    time_ms: int
    statuses: tuple[SourceStatus, ...]


@dataclass(slots=True)
class _Attempt:
    task: asyncio.Task[SourceStatus]
    since: float


class Sampler:
    """Drives the sources. All cycles of a sampler run in one event loop, as the sources keep their connections."""

    def __init__(self, store: SeriesStore, sources: Sequence[Source], interval_ms: int = 1000) -> None:
        self.store = store
        self.interval_ms = interval_ms
        self._roots = list(sources)
        self._running: dict[Source, _Attempt] = {}

    @property
    def sources(self) -> list[Source]:
        """The sources as they are now: a discovery stands for its members, or for itself when it has none."""
        found: list[Source] = []
        for root in self._roots:
            members = root.members if isinstance(root, Discovery) else []
            if not members or not root.status.ok:
                found.append(root)
            found.extend(members)
        return list(dict.fromkeys(found))

    @property
    def statuses(self) -> tuple[SourceStatus, ...]:
        """How every source stood after its latest finished attempt."""
        return tuple(source.status for source in self.sources)

    async def cycle(self, now_ms: int, patience_s: float | None = None) -> Cycle:
        """Ask every source that is not still busy, and wait for the answers at most ``patience_s`` (the interval).

        A source that has not answered by then goes on within its own deadline and is not asked again meanwhile; until
        it answers, its status here says for how long it has been silent.
        """
        until = time.monotonic() + (self.interval_ms / 1000 if patience_s is None else patience_s) + _GRACE_S
        lists = [root for root in self._roots if isinstance(root, Discovery)]
        settled = await self._ask(lists, now_ms, until)
        for found in lists:
            await _retire(found, self._running, now_ms)
        settled |= await self._ask([one for one in self.sources if one not in settled], now_ms, until)
        return Cycle(now_ms, tuple(settled.get(source, source.status) for source in self.sources))

    def when_answered(self, call: Callable[[], object]) -> None:
        """Call it, in the event loop, whenever an attempt that the latest cycle did not wait for has ended."""
        for attempt in self._running.values():
            attempt.task.add_done_callback(lambda _: call())

    def cycle_alone(self, now_ms: int) -> Cycle | None:
        """One cycle without an event loop (asyncio costs more to load than a scrape): the only one of its sampler.

        None, and nothing is asked, where several targets would have to be asked side by side.
        """
        asked = [(root, getattr(root, "collect_alone", None)) for root in self._roots]
        if sum(root.status.kind != "recording" for root in self._roots) > 1:
            return None
        if any(ask is None for _, ask in asked):  # a list of targets
            return None
        return Cycle(now_ms, tuple(_alone(root, ask, now_ms) for root, ask in asked if ask is not None))

    async def close(self) -> None:
        """Stop what is under way and close the sources; never waits for a target."""
        tasks = [attempt.task for attempt in self._running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            import asyncio

            await asyncio.gather(*tasks, return_exceptions=True)
        self._running.clear()
        for source in {*self._roots, *self.sources}:
            with contextlib.suppress(OSError):
                await source.close()

    async def _ask(self, sources: Iterable[Source], now_ms: int, until: float) -> dict[Source, SourceStatus]:
        import asyncio

        asked = list(sources)
        for source in asked:
            if source not in self._running:
                task = asyncio.create_task(source.collect(now_ms), name=source.target)
                self._running[source] = _Attempt(task, time.monotonic())
        if asked:
            await asyncio.wait([self._running[one].task for one in asked], timeout=max(0.0, until - time.monotonic()))
        return {source: self._settle(source, now_ms) for source in asked}

    def _settle(self, source: Source, now_ms: int) -> SourceStatus:
        attempt = self._running[source]
        if not attempt.task.done():
            silent = time.monotonic() - attempt.since
            return replace(source.status, state="timeout", error=f"no answer yet after {silent:.1f} s", time_ms=now_ms)
        del self._running[source]
        if attempt.task.cancelled():
            return replace(source.status, state="gone", error="the attempt was cancelled", time_ms=now_ms)
        failure = attempt.task.exception()
        return _broken(source, now_ms, failure) if failure is not None else attempt.task.result()


def _alone(source: Source, ask: Callable[[int], SourceStatus], now_ms: int) -> SourceStatus:
    try:
        return ask(now_ms)
    except Exception as failure:
        return _broken(source, now_ms, failure)


def _broken(source: Source, now_ms: int, failure: BaseException) -> SourceStatus:
    """A source must not raise; one that does is the fault of kvscope, and no other source's."""
    words = f"internal error: {type(failure).__name__}: {failure}"
    return replace(source.status, state="gone", error=words, time_ms=now_ms)


async def _retire(discovery: Discovery, running: dict[Source, _Attempt], now_ms: int) -> None:
    """Close the sources that a discovery lists no more; their series end here."""
    gone, discovery.retired = discovery.retired, []
    for source in gone:
        attempt = running.pop(source, None)
        if attempt is not None:
            import asyncio

            attempt.task.cancel()
            await asyncio.gather(attempt.task, return_exceptions=True)
        await source.close()
        source.expire(now_ms)
