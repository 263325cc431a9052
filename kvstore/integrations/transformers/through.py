"""Write-through of a batch: once a step, all rows side by side, while the next step is computed.

A store that is away does not hold generation up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from kvstore.client import SyncClient
from kvstore.errors import StoreError
from kvstore.integrations.transformers.counts import Counts
from kvstore.integrations.transformers.history import Piece
from kvstore.integrations.transformers.writer import RowWriter

log = logging.getLogger(__name__)

PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""After a failure nothing is written for so long, twice as long after each further one (policy)."""


Running = asyncio.Task[list[BaseException | None]]


class WriteThrough:
    """Rows whose writers are None are not written. `most_bytes`: what a row may keep waiting while the store is away;
    a row with more is given up, since blocks behind a gap in the chain are of no use to anybody."""

    def __init__(
        self, client: SyncClient, writers: Sequence[RowWriter | None], counts: Counts, *, most_bytes: int
    ) -> None:
        self._client = client
        self._writers = list(writers)
        self._counts = counts
        self._most_bytes = most_bytes
        self._failed = 0
        self._not_before = 0.0
        self._running: Running | None = None

    @property
    def paused(self) -> bool:
        """The store was away, and it is too early to try again."""
        return time.monotonic() < self._not_before

    def step(self, row: int, full: list[Piece], tail: Piece | None) -> None:
        """What a step added to a row; written by the next `write`. Not while one is running (`settle`)."""
        writer = self._writers[row]
        if writer is not None:
            writer.add(full, tail)

    def give_up(self, row: int) -> None:
        """Write this row no more."""
        if self._writers[row] is not None:
            self._writers[row] = None
            self._counts.given_up_rows += 1

    def write(self) -> None:
        """Begin to bring every row over, beside what the caller computes next. Call `settle` before the next `step`."""
        self.settle()
        if self.paused:
            self._bound()
        else:
            try:
                self._running = self._client.run(self._begin())
            except StoreError as lost:  # the client was closed
                self._pause(lost)

    def settle(self) -> None:
        """Wait for what `write` has begun. Never raises for what a store does."""
        if self._running is None:
            return
        running, self._running = self._running, None
        try:
            errors = [error for error in self._client.run(_ended(running)) if error is not None]
        except StoreError as lost:  # the client was closed
            errors = [lost]
        for error in errors:
            if not isinstance(error, StoreError):
                raise error
        if errors:
            self._pause(errors[0])
        elif self._failed:
            log.warning("the store takes writes again")
            self._failed, self._not_before = 0, 0.0

    def flush(self) -> bool:
        """Bring over what waits, also during a pause; whether nothing waits any more."""
        self.settle()
        self._not_before = 0.0
        self.write()
        self.settle()
        return not self.paused

    async def _begin(self) -> Running:
        return asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> list[BaseException | None]:
        writers = [writer for writer in self._writers if writer is not None]
        return await asyncio.gather(*(writer.write() for writer in writers), return_exceptions=True)

    def _pause(self, error: BaseException) -> None:
        self._counts.write_failures += 1
        if not self._failed:
            log.warning("KV is not written through for now (%s); generation goes on", error)
        self._not_before = time.monotonic() + min(LONGEST_PAUSE_S, PAUSE_S * 2**self._failed)
        self._failed += 1
        self._bound()

    def _bound(self) -> None:
        for row, writer in enumerate(self._writers):
            if writer is not None and writer.waiting_bytes > self._most_bytes:
                log.warning("row %d is written no more: %d bytes wait for the store", row, writer.waiting_bytes)
                self.give_up(row)


async def _ended(running: Running) -> list[BaseException | None]:
    return await asyncio.shield(running)
