"""Group commit: the thread that gathers batches, writes them, flushes once, and answers all of them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from kvstore.errors import LogFailed, LogFull, StoreError
from kvstore.log.collect import DROP_EXTRA, Collector
from kvstore.log.config import Durability
from kvstore.log.record import Batch, Kind
from kvstore.log.table import Continuity
from kvstore.log.ticket import Ticket, settle
from kvstore.log.timer import NativeTimer, tighten_slack
from kvstore.log.writer import Writer
from probes.instrument import Instrument

_log = logging.getLogger("kvscope.store.log")
_instrument = Instrument("kvstore.log")
_APPEND = int(Kind.APPEND)
_STORES = (int(Kind.PUT), _APPEND)


class Flusher:
    """One thread. `put` may be called from any thread; everything else of the log belongs to this one."""

    def __init__(
        self,
        writer: Writer,
        collector: Collector,
        timer: NativeTimer,
        on_failure: Callable[[LogFailed], None] | None,
    ) -> None:
        self.writer = writer
        self.collector = collector
        self.config = writer.shelf.config
        self.failure: LogFailed | None = None
        """Why the log stopped for good."""
        self.acknowledge_early = False
        """Seeded fault for the crash test: answer before the flush."""
        self._timer = timer
        self._on_failure = on_failure
        self._writing: list[Ticket] = []
        self._queue: deque[Ticket] = deque()
        self._idle = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="kv-log-flusher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, ticket: Ticket) -> None:
        """Hand over a batch. Raises `LogFailed` when the log has stopped."""
        if self.failure is not None or self._closing:
            raise self.failure or LogFailed("the log is closed")
        self._queue.append(ticket)
        if self._idle or ticket.file_bytes >= self.config.group_bytes:
            self._idle = False
            self._timer.wake()
        self._drain_failed()  # it may have stopped in between: nobody else would answer

    @property
    def pending_records(self) -> int:
        """Handed over and not yet answered."""
        tickets = [*self._queue, *self._writing]
        return sum(ticket.records for ticket in tickets if not ticket.done)

    def close(self, timeout_s: float) -> bool:
        """Write what waits, then end the thread; False when that took longer than `timeout_s`. What waits is then
        refused, though the thread may still write it."""
        self._closing = True
        self._timer.wake()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            return True
        self.failure = self.failure or LogFailed("the log did not end in time: its device does not answer")
        self._drain_failed()
        return False

    def _run(self) -> None:
        tighten_slack()
        try:
            while (group := self._gather()) is not None:
                if group:
                    self._commit(group)
                while self.collector.step() and not self._queue:
                    pass
            if self.failure is None:
                self.collector.checkpoint()
        except LogFailed as error:
            self._stop(error)
        except Exception as error:  # a defect must not leave callers waiting
            _log.exception("the log's flusher stopped")
            self._stop(LogFailed(f"the log stopped: {type(error).__name__}: {error}"))

    def _gather(self) -> list[Ticket] | None:
        """The next group; an empty one when only housekeeping is due; None when closing and nothing waits."""
        if not self._queue:
            if self._closing:
                return None
            self._idle = True
            if not self._queue and not self._closing:
                self._timer.wait()
            self._idle = False
            if not self._queue:
                return []
        deadline = self._queue[0].arrived_ns + self.config.window_us * 1000
        while not self._closing and not self._full():
            left = deadline - time.monotonic_ns()
            if left <= 0:
                break
            self._timer.wait_for(left)
        group: list[Ticket] = []
        size = 0
        while self._queue and len(group) < self.config.group_batches and size < self.config.group_bytes:
            ticket = self._queue.popleft()
            group.append(ticket)
            size += ticket.file_bytes
        return group

    def _full(self) -> bool:
        """Nothing is gained by waiting longer."""
        if len(self._queue) >= self.config.group_batches:
            return True
        return sum(ticket.file_bytes for ticket in list(self._queue)) >= self.config.group_bytes

    def _commit(self, group: list[Ticket]) -> None:
        """One span a group, in the trace of its first batch; it links to the spans of all that wait for it."""
        waiting = list(dict.fromkeys(ticket.traceparent for ticket in group if ticket.traceparent))
        if not waiting:
            self._make_durable(group, None)
            return
        records = sum(ticket.records for ticket in group)
        with _instrument.span("kv.log.flush", parent=waiting[0], links=waiting, blocks=records) as span:
            self._make_durable(group, span.trace_id)

    def _make_durable(self, group: list[Ticket], trace_id: str | None) -> None:
        self._writing = group
        try:
            group = self._without_orphans(group)
            written = self._write(group)
            if not written:
                return
            if self.acknowledge_early:
                self._acknowledge(written)
            if self.config.durability is Durability.LOG_SYNC:
                self.writer.stats.wal_flush_seconds.observe(self.writer.sync(), trace_id)
            self.writer.stats.wal_group_records.observe(sum(ticket.records for ticket in written))
            if not self.acknowledge_early:
                self._acknowledge(written)
        except Exception as error:
            failed = error if isinstance(error, LogFailed) else LogFailed(f"the log stopped: {error}")
            self.failure = failed
            settle([ticket for ticket in group if not ticket.done], failed)
            raise
        finally:
            self._writing = []

    def _write(self, group: list[Ticket]) -> list[Ticket]:
        """Write all at once; where there is no room for all, one by one as far as they fit."""
        if not group:
            return []
        if self._write_some(group) is None:
            written = group
        elif len(group) == 1:
            written = []
        else:
            written = [ticket for ticket in group if self._write_some([ticket]) is None]
        now = time.monotonic_ns()
        for ticket in written:
            ticket.written_ns = now
        return written

    def _write_some(self, tickets: list[Ticket]) -> LogFull | None:
        """None when written. A single ticket that finds no room is answered with the refusal."""
        batches = [ticket.batch for ticket in tickets if ticket.batch is not None]
        extra = 0 if any(_stores(batch) for batch in batches) else DROP_EXTRA
        refusal: LogFull | None = None
        for _ in range(2):
            try:
                self.writer.write(batches, extra)
                return None
            except LogFull as error:
                refusal = error
                if not self.collector.reclaim():
                    break
        if len(tickets) == 1:
            self.writer.stats.wal_failures["write"] += 1
            settle(tickets, refusal)
        return refusal

    def _without_orphans(self, group: list[Ticket]) -> list[Ticket]:
        """Appends that continue nothing are refused before they are written."""
        headers = [ticket.batch.headers for ticket in group if ticket.batch is not None]
        if not any(_APPEND in columns["kind"] for columns in headers):
            return group
        kept, continuity = [], Continuity(self.writer.table)
        for ticket, columns in zip(group, headers, strict=True):
            if continuity.admits(columns):
                kept.append(ticket)
            else:
                settle([ticket], StoreError("an append to the log continues no block that the log holds"))
        return kept

    def _acknowledge(self, tickets: list[Ticket]) -> None:
        self.writer.stats.wal_acknowledged_bytes += sum(
            ticket.batch.payload_bytes for ticket in tickets if ticket.batch is not None
        )
        settle(tickets, None)

    def _stop(self, failure: LogFailed) -> None:
        self.failure = failure
        self._drain_failed()
        if self._on_failure is not None:
            self._on_failure(failure)

    def _drain_failed(self) -> None:
        while self._queue and self.failure is not None:
            try:
                ticket = self._queue.popleft()
            except IndexError:
                return
            settle([ticket], self.failure)


def _stores(batch: Batch) -> bool:
    return bool(set(batch.headers["kind"].tolist()) & set(_STORES))
