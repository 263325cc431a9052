"""The write-ahead log of one shard."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from kvstore.errors import BadRequest, LogCorrupt, LogFailed
from kvstore.log.checkpoint import Checkpoint, load, save
from kvstore.log.collect import Collector
from kvstore.log.config import LogConfig
from kvstore.log.group import Flusher
from kvstore.log.helper import Helper
from kvstore.log.lock import DirectoryLock, open_failure
from kvstore.log.newest import Newest
from kvstore.log.record import Batch, Kind, drops
from kvstore.log.recovery import GO_ON, Entries, LiveEntry, Replay, replay
from kvstore.log.shelf import Shelf, open_segments
from kvstore.log.stats import LogStats, WalMeters
from kvstore.log.ticket import Ticket
from kvstore.log.timer import NativeTimer
from kvstore.log.writer import Writer

_log = logging.getLogger("kvscope.store.log")
CLOSE_S = 30.0
"""How long the device may take to take what is left."""


class Log:
    """Open on construction, recovered, and ready to append; a context manager.

    ``append`` from an event loop or from plain code; nothing is acknowledged before it is as durable as the
    configuration says. Raises at construction `LogLocked`, `LogCorrupt`, `LayoutMismatch`, or `LogFailed` when the
    directory cannot be used.
    """

    def __init__(
        self,
        directory: Path | str,
        config: LogConfig,
        stats: WalMeters | None = None,
        on_failure: Callable[[LogFailed], None] | None = None,
    ) -> None:
        """`stats` is where to count (a shard's `Meters`); `on_failure` is called once, on the flusher's thread, when
        the log stops for good."""
        self.directory = Path(directory)
        self.config = config
        self.stats: WalMeters = stats if stats is not None else LogStats()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = DirectoryLock(self.directory)
        except OSError as error:
            raise open_failure(self.directory, error) from None
        try:
            self._open(on_failure)
        except OSError as error:
            self._lock.close()
            raise open_failure(self.directory, error) from None
        except BaseException:
            self._lock.close()
            raise
        self._flusher.start()

    damaged_blocks = 0
    """Blocks that recovery left out since their payload had changed on disk."""

    def _open(self, on_failure: Callable[[LogFailed], None] | None) -> None:
        checkpoint = load(self.directory, self.config)
        self._newest = Newest(self.directory, fresh=checkpoint is None)
        segments = open_segments(self.directory)
        replayed = replay(self.directory, self.config, checkpoint, segments, self._newest.epoch)
        if replayed.lost_records:
            _log.warning("the log in %s is damaged: %d records are dropped", self.directory, replayed.lost_records)
        self.last_clock = replayed.table.last_clock
        """The highest Lamport clock that the log holds: merge it before handing out a new one."""
        self._timer = NativeTimer()
        self._helper = Helper()
        shelf = Shelf(self.directory, self.config, self._helper, self._timer.wake)
        by_epoch = {segment.epoch: segment for segment in segments if segment.epoch}
        live = {epoch for epoch, size in replayed.table.live_bytes.items() if size}
        newest = by_epoch.get(replayed.position.epoch)
        if newest is not None:
            if replayed.lost_records:
                newest.erase(replayed.position.offset)
            newest.sync()  # what was only in the page cache counts from now on
        if checkpoint is None or replayed.position != checkpoint.position:
            taken = Checkpoint(replayed.position, replayed.table.snapshot(), replayed.table.last_clock)
            self.stats.wal_written_bytes += save(self.directory, self.config, taken)
        self._recovered: Entries | None = Entries(replayed.table.snapshot(), by_epoch, self.config.shape)
        shelf.adopt(segments, live, replayed.position.epoch)
        self._writer = Writer(shelf, replayed.table, replayed.position, self.stats, self._newest)
        self._collector = Collector(self._writer, self._helper, self._timer.wake)
        self._flusher = Flusher(self._writer, self._collector, self._timer, on_failure)
        self._replayed: Replay = replayed

    def recovered(self) -> Iterator[LiveEntry]:
        """The blocks that the log held when it was opened, oldest write first; once, and before the first append.

        Raises `LogCorrupt` at the end when a block's payload is damaged; with `drop_damaged` it is left out, said and
        counted in `damaged_blocks`.
        """
        entries, self._recovered = self._recovered, None
        if entries is None:
            raise RuntimeError("recovered() was called already, or after an append")
        self._collector.on_hold = True
        try:
            yield from entries
        finally:
            self._collector.on_hold = False
        self.damaged_blocks = len(entries.damaged)
        if entries.damaged:
            lost = (
                f"{len(entries.damaged)} of {len(entries)} blocks in the log in {self.directory} no longer have their "
                f"checksum (the first is in {entries.damaged[0][1]})"
            )
            if not self.config.drop_damaged:
                raise LogCorrupt(f"{lost}: {GO_ON}")
            _log.warning("%s: they are dropped", lost)
            keys = np.frombuffer(b"".join(key for key, _ in entries.damaged), np.uint64).reshape(-1, 4)
            self.append(drops(keys, Kind.EVICT, clock=self.last_clock))

    def append(self, batch: Batch, loop: asyncio.AbstractEventLoop | None = None, traceparent: str = "") -> Ticket:
        """Hand a batch to the log; with `loop`, `ticket.future` is resolved there. `traceparent`: the span that waits.

        The payload buffers must keep their bytes until the ticket is done. Raises `BadRequest` for payloads of the
        wrong size, `LogFailed` when the log has stopped; the ticket fails with `LogFull` when there is no room.
        """
        if not len(batch):
            raise BadRequest("an empty batch for the log")
        self._check(batch)
        if not self._collector.on_hold:
            self._recovered = None
        ticket = Ticket(batch, loop, traceparent)
        self._flusher.put(ticket)
        return ticket

    async def commit(self, batch: Batch) -> None:
        """`append`, then wait in this event loop."""
        ticket = self.append(batch, asyncio.get_running_loop())
        assert ticket.future is not None
        await ticket.future

    @staticmethod
    def wait(ticket: Ticket, timeout: float) -> None:
        """Block until `ticket` is acknowledged; see `Ticket.wait`."""
        ticket.wait(timeout)

    @property
    def failure(self) -> LogFailed | None:
        """Set once the log has stopped for good: the shard must stop too."""
        return self._flusher.failure

    @property
    def pending_records(self) -> int:
        """Handed over and not yet answered."""
        return self._flusher.pending_records

    @property
    def segments(self) -> dict[str, int]:
        """By state: active, sealed, spare."""
        return self._writer.shelf.by_state()

    @property
    def truncations(self) -> int:
        """How often segments were freed."""
        return self._collector.truncations

    @property
    def checkpoints(self) -> int:
        return self._collector.checkpoints

    @property
    def live_blocks(self) -> int:
        """Blocks that a recovery would find."""
        return len(self._writer.table)

    @property
    def replayed_records(self) -> int:
        """Records behind the checkpoint that opening this log replayed."""
        return self._replayed.records

    @property
    def lost_records(self) -> int:
        """Whole records behind damage, left out when the log was opened (with `drop_damaged`)."""
        return self._replayed.lost_records

    @property
    def torn_bytes(self) -> int:
        """Whole records of a batch that was not complete when the log was opened."""
        return self._replayed.torn_bytes

    def _check(self, batch: Batch) -> None:
        headers, shape = batch.headers, self.config.shape
        kinds, sizes = headers["kind"], headers["payload_bytes"]
        if (kinds == Kind.PUT).all():  # the common case, cheaply
            fits = (sizes == shape.block_bytes).all() and (headers["valid"] <= shape.tokens).all()
            if fits:
                return
        whole = kinds == Kind.PUT
        added = kinds == Kind.APPEND
        first, valid = headers["first"].astype(np.int64), headers["valid"].astype(np.int64)
        expected = np.where(whole, shape.block_bytes, 0)
        expected[added] = ((valid - first) * shape.planes * shape.token_bytes)[added]
        bad = (sizes != expected) | (valid > shape.tokens) | (added & (valid <= first))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise BadRequest(
                f"record {row} of a log batch has {sizes[row]} payload bytes for tokens {first[row]} to {valid[row]}; "
                f"blocks here hold {shape.tokens} tokens in {shape.block_bytes} bytes"
            )

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Acknowledge what waits, write a checkpoint, release the directory.

        Raises `LogFailed` after `timeout_s`, and then releases nothing: what was acknowledged is safe, what was not may
        or may not be there, and the threads that wait for the device end with the process.
        """
        end = time.monotonic() + timeout_s
        if not (self._flusher.close(timeout_s) and self._helper.close(max(0.0, end - time.monotonic()))):
            raise LogFailed(
                f"the log in {self.directory} did not end within {timeout_s:g} s: its device does not answer; what was "
                "acknowledged is safe, and the next start goes on from there"
            )
        self._writer.shelf.close()
        self._newest.close()
        self._timer.close()
        self._lock.close()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
