"""The monitor: one thread with its own event loop that samples, moves the cursor, and posts one snapshot a tick.

The thread is a daemon and nothing waits for it: a target that hangs, or a query that takes long, never holds up a
key. What the app wants of it goes through a queue; `move` and `explain` return at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from playbooks.verdict import SourceLine
from tui.cursor import Cursor, Mode
from tui.messages import Failed, Ticked
from tui.options import Options
from tui.panels import BY_NAME
from tui.provenance import Provenance, explain
from tui.snapshot import Snapshot, nothing_yet
from tui.source_views import PATIENT, Clock, Page, cut_of, events_now, faults_of, pages_of, source_views

if TYPE_CHECKING:
    from textual.message import Message

    from probes.attach import Attachment
    from tui.observer import Observer
    from tui.pools import Pool, PoolObserver
    from tui.trail import Key

LEAST_WINDOW_MS = 60_000
LIVE_SPAN_MS = 300_000
LONGEST_SPAN_MS = 900_000
_PLAY_TICK_S = 0.5
_PAGE_TICKS = 20
_PATIENCE = 0.4  # share of a tick in which answers are awaited before the screen is drawn without them


class Monitor(threading.Thread):
    """Owns the attachment: everything that touches samples happens in this thread."""

    def __init__(self, attach: Callable[[], Attachment], post: Callable[[Message], object], options: Options) -> None:
        super().__init__(name="kvtop-monitor", daemon=True)
        self._attach, self._post, self.options = attach, post, options
        self._orders: deque[Callable[[], None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._stopped = False
        self._cursor: Cursor | None = None
        self._screen = "overview"
        self._pools: PoolObserver | None = None
        self._explained: Key | None = None

    # --- called from the app's thread

    def stop(self) -> None:
        self._stopped = True
        self._nudge()

    def move(self, change: Callable[[Cursor], Cursor]) -> None:
        """Change the cursor; the next snapshot, at once, is for its new moment."""
        self._order(lambda: self._move(change))

    def explain(self, asked: Key | None) -> None:
        """Ask where a number comes from: every snapshot says it of its own moment, until None is asked for."""
        self._order(lambda: setattr(self, "_explained", asked))

    def show(self, screen: str) -> None:
        """Which screen is up: the pools are asked for only while somebody looks."""
        self._order(lambda: setattr(self, "_screen", screen))

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.append(order)
        self._nudge()

    def _nudge(self) -> None:
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None and not loop.is_closed():
            loop.call_soon_threadsafe(wake.set)

    # --- the thread itself

    def run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception as error:  # the thread's last words: the screen must say why it stands still
            if not self._stopped:
                self._post(Failed(f"the monitor failed: {type(error).__name__}: {error}"))

    async def _main(self) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        try:
            self._attachment = self._attach()
        except Exception as error:
            self._post(Failed(str(error)))
            return
        from tui.examiner import Examiner

        attachment = self._attachment
        self._examiner = Examiner(attachment.view, attachment.interval_ms, self.options.playbooks)
        self._observer: Observer | None = None
        self._drawn_at = 0.0
        self._began_ms = time.time_ns() // 1_000_000
        self._count, self._pages = 0, dict[str, Page]()
        self._statuses = attachment.statuses
        try:
            await self._ticks()
        finally:
            await asyncio.wait_for(attachment.close(), 0.1)

    async def _ticks(self) -> None:
        began = time.monotonic()
        interval_s = self.options.interval_ms / 1000
        due = 0.0
        await self._sample(interval_s)
        while not self._stopped:
            self._tick()
            due = max(due + interval_s, time.monotonic() - began)
            while not self._stopped:
                left = began + due - time.monotonic()
                if left <= 0:
                    break
                if await self._woken(min(left, _PLAY_TICK_S if self._playing else left)) or self._playing:
                    self._tick()
            await self._sample(interval_s)

    @property
    def _playing(self) -> bool:
        return self._cursor is not None and self._cursor.mode is Mode.PLAYING

    async def _woken(self, wait_s: float) -> bool:
        """Wait; True when an order came (all that came are carried out)."""
        assert self._wake is not None
        try:
            await asyncio.wait_for(self._wake.wait(), wait_s)
        except TimeoutError:
            return False
        self._wake.clear()
        while self._orders:
            self._orders.popleft()()
        return not self._stopped

    async def _sample(self, interval_s: float) -> None:
        if self._stopped or not (self._attachment.live or self._cursor is None):
            return
        now_ms = time.time_ns() // 1_000_000
        self._statuses = (await self._attachment.cycle(now_ms, interval_s * _PATIENCE)).statuses
        if self._attachment.span() is None:  # the first data is shown when it is there, not at the next tick
            self._attachment.sampler.when_answered(self._answered)

    def _answered(self) -> None:
        assert self._wake is not None
        self._statuses = self._attachment.statuses
        self._wake.set()

    # --- one tick

    def _tick(self) -> None:
        now, now_ms = time.monotonic(), time.time_ns() // 1_000_000
        elapsed_ms = round((now - self._drawn_at) * 1000) if self._drawn_at else 0
        self._drawn_at = now
        if self._count % _PAGE_TICKS == 0:
            self._pages = pages_of(self._attachment)
        self._count += 1
        span = self._attachment.span()
        if span is None:
            options = self.options
            blank = nothing_yet(options.interval_ms, self._window_ms, options.label, options.opening)
            sources = source_views(self._statuses, {}, self._pages, self._clock(now_ms))
            self._post(Ticked(replace(blank, now_ms=now_ms, sources=sources)))
            return
        cursor = self._advanced(self._reaching(span, now_ms), elapsed_ms)
        due = self._examiner.due(self._start_ms(cursor), cursor.at_ms, resting=cursor.mode is Mode.PAUSED)
        shot = replace(self._picture(cursor, now_ms), examining=due)
        self._post(Ticked(shot))
        if due:
            self._examine(shot)

    def _clock(self, now_ms: int) -> Clock:
        return Clock(now_ms, self._began_ms, self._attachment.interval_ms)

    def _reaching(self, span: tuple[int, int], now_ms: int) -> tuple[int, int]:
        """Live, the span ends with the newest samples, but where none have come for a while, now: silence ages."""
        start_ms, end_ms = span
        if not self._attachment.live or now_ms - end_ms <= PATIENT * self._attachment.interval_ms:
            return span
        return start_ms, now_ms

    def _start_ms(self, cursor: Cursor) -> int:
        """Where the data of the cursor's moment begins: what is scraped now does not go on from an old recording."""
        kinds = {status.kind for status in self._statuses}
        beside = self._attachment.live and "recording" in kinds and "prometheus" not in kinds
        if not beside or cursor.at_ms < self._began_ms:
            return cursor.start_ms
        return self._attachment.first_since(self._began_ms) or cursor.start_ms

    def _advanced(self, span: tuple[int, int], elapsed_ms: int) -> Cursor:
        if self._cursor is None:
            self._cursor = self._first_cursor(span)
        else:
            self._cursor = self._cursor.spanning(*span).advanced(elapsed_ms)
        return self._cursor

    def _first_cursor(self, span: tuple[int, int]) -> Cursor:
        start_ms, end_ms = span
        if self._attachment.live:
            return Cursor(Mode.LIVE, end_ms, start_ms, end_ms)
        at_ms, mode = (start_ms, Mode.PLAYING) if self.options.play else (end_ms, Mode.PAUSED)
        return Cursor(mode, at_ms, start_ms, end_ms, self.options.speed, recorded=True)

    @property
    def _window_ms(self) -> int:
        return self.options.window_ms or max(LEAST_WINDOW_MS, 4 * self._attachment.interval_ms)

    def _picture(self, cursor: Cursor, now_ms: int) -> Snapshot:
        observer = self._observer = self._observer or self._first_observer(cursor)
        now_is_shown = self._attachment.live and cursor.at_end
        faults = faults_of(self._statuses, now_ms, self._attachment.interval_ms) if now_is_shown else {}
        live = cursor.mode is Mode.LIVE
        cut = cut_of(self._statuses, self._pages)
        rows, total = observer.observe(cursor.at_ms, self._start_ms(cursor), faults, live=live, cut=cut)
        window_ms = observer.window_at(cursor.at_ms, self._start_ms(cursor))
        diagnosis = self._examiner.verdict_at(cursor.at_ms, moving=cursor.mode is not Mode.PAUSED)
        sources = source_views(self._statuses, observer.seen, self._pages, self._clock(now_ms))
        return Snapshot(
            time_ms=cursor.at_ms,
            now_ms=now_ms,
            interval_ms=self._attachment.interval_ms,
            window_ms=window_ms,
            span_ms=min(observer.span_ms, max(LEAST_WINDOW_MS, cursor.at_ms - cursor.start_ms)),
            cursor=cursor,
            rows=rows,
            fleet=total,
            trails=observer.trails(),
            sources=sources,
            diagnosis=diagnosis,
            events=events_now(diagnosis, sources if now_is_shown else (), now_ms),
            trouble=self._examiner.trouble,
            label=self.options.label,
            pages=self._examiner.pages,
            pools=self._seen_pools(cursor, observer),
            origin=self._origin(cursor, window_ms),
        )

    def _seen_pools(self, cursor: Cursor, observer: Observer) -> tuple[Pool, ...] | None:
        if self._screen != "pool":
            return None
        if self._pools is None:
            from tui.pools import PoolObserver

            self._pools = PoolObserver(self._attachment.view, observer.span_ms)
        return self._pools.observe(cursor.at_ms, observer.window_at(cursor.at_ms, self._start_ms(cursor)))

    def _origin(self, cursor: Cursor, window_ms: int) -> Provenance | None:
        if self._explained is None:
            return None
        panel, entity = self._explained
        return explain(self._attachment.view, BY_NAME[panel], entity, cursor.at_ms, window_ms)

    def _first_observer(self, cursor: Cursor) -> Observer:
        from tui.observer import Observer

        span_ms = LIVE_SPAN_MS
        if not self._attachment.live:
            span_ms = min(max(cursor.end_ms - cursor.start_ms, LEAST_WINDOW_MS), LONGEST_SPAN_MS)
        return Observer(self._attachment.view, self._attachment.interval_ms, self._window_ms, span_ms)

    def _examine(self, shot: Snapshot) -> None:
        """Diagnose, and show what came of it at once."""
        lines = [SourceLine(s.target, s.state, s.age_s, s.error or None, s.incomplete) for s in shot.sources]
        self._examiner.examine(self._start_ms(shot.cursor), shot.cursor.at_ms, lines)
        found = self._examiner.diagnosis
        now_is_shown = self._attachment.live and shot.cursor.at_end
        events = events_now(found, shot.sources if now_is_shown else (), shot.now_ms)
        trouble, pages = self._examiner.trouble, self._examiner.pages
        told = replace(shot, diagnosis=found, events=events, trouble=trouble, pages=pages, examining=False)
        self._post(Ticked(told))

    def _move(self, change: Callable[[Cursor], Cursor]) -> None:
        if self._cursor is not None:
            before, self._cursor = self._cursor, change(self._cursor)
            self._drawn_at = 0.0
            if self._cursor.at_ms != before.at_ms:
                self._examiner.forget()
