"""What an append answers: a promise that the flusher's thread keeps."""

from __future__ import annotations

import asyncio
import time
from _thread import allocate_lock
from collections.abc import Iterable

from kvstore.errors import DeadlineExceeded
from kvstore.log.record import Batch


class Ticket:
    """One batch on its way to the log; times are `time.monotonic_ns()`, 0 for what has not happened."""

    __slots__ = (
        "_gate",
        "acknowledged_ns",
        "arrived_ns",
        "batch",
        "error",
        "file_bytes",
        "future",
        "records",
        "traceparent",
        "written_ns",
    )

    def __init__(self, batch: Batch, loop: asyncio.AbstractEventLoop | None, traceparent: str = "") -> None:
        self.arrived_ns = time.monotonic_ns()
        self.written_ns = 0
        self.acknowledged_ns = 0
        self.batch: Batch | None = batch
        """Let go (with its views of the arena) once answered."""
        self.traceparent = traceparent
        """The span that waits for it; the span of the flush that answers it links there."""
        self.records = len(batch)
        self.file_bytes = batch.file_bytes
        self.error: Exception | None = None
        self.future: asyncio.Future[None] | None = loop.create_future() if loop else None
        self._gate = allocate_lock()
        self._gate.acquire()

    @property
    def done(self) -> bool:
        return self.acknowledged_ns > 0 or self.error is not None

    def wait(self, timeout: float) -> None:
        """Block until acknowledged. Raises what the log raised, `DeadlineExceeded` after `timeout` seconds (the batch
        may become durable later all the same)."""
        if not self._gate.acquire(timeout=timeout):
            raise DeadlineExceeded(f"the log did not acknowledge within {timeout:g} s")
        self._gate.release()
        if self.error is not None:
            raise self.error


def settle(tickets: Iterable[Ticket], error: Exception | None) -> None:
    """Answer tickets from the flusher's thread: one wake-up for each event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[Ticket]] = {}
    now = time.monotonic_ns()
    for ticket in tickets:
        ticket.error = error
        if error is None:
            ticket.acknowledged_ns = now
        ticket.batch = None
        ticket._gate.release()
        if ticket.future is not None:
            loops.setdefault(ticket.future.get_loop(), []).append(ticket)
    for loop, group in loops.items():
        try:
            loop.call_soon_threadsafe(_wake, group)
        except RuntimeError:  # the loop is closed: nobody waits any more
            continue


def _wake(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        future = ticket.future
        if future is None or future.done():
            continue
        if ticket.error is None:
            future.set_result(None)
        else:
            future.set_exception(ticket.error)
