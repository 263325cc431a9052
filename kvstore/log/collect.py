"""Room in the log: live records of nearly dead segments move on, a checkpoint follows, segments become spares.

A segment is used again only after a durable checkpoint that needs nothing in it: neither a live record nor, since
replay begins at the checkpoint's position, a record that says a block is gone. All in slices between two groups, on the
flusher's thread; the checkpoint's file is written by the helper thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from kvstore.errors import LogFailed, LogFull
from kvstore.log.checkpoint import Checkpoint, save
from kvstore.log.helper import Helper
from kvstore.log.record import Batch, Kind, puts
from kvstore.log.recovery import read_block
from kvstore.log.segment import DATA_START, Segment
from kvstore.log.shelf import write_failure
from kvstore.log.writer import Writer

_log = logging.getLogger("kvscope.store.log")
SLICE_BYTES = 1 << 20
CHEAP_LIVE_RATIO = 0.1
"""A checkpoint that is due anyway frees segments with no more than this alive too, so that it pays for several."""
REWRITE_EXTRA = 1
DROP_EXTRA = 2
"""Segments beyond the limit that rewrites, and records that free blocks, may take: a full log must be able to empty."""


class Collector:
    """Owned by the flusher thread."""

    def __init__(self, writer: Writer, helper: Helper, wake: Callable[[], None]) -> None:
        self.writer = writer
        self.shelf = writer.shelf
        self.table = writer.table
        self.config = writer.shelf.config
        self.truncations = 0
        """Times that segments were freed."""
        self.checkpoints = 0
        self.damaged_blocks = 0
        """Blocks that were to be moved and no longer had their checksum."""
        self.on_hold = False
        """While recovery's entries are being read, segments stay as they are."""
        self._helper = helper
        self._wake = wake
        self._saving: Future[int] | None = None
        self._freed_by_saving: list[int] = []
        self._victim: int | None = None

    def step(self) -> bool:
        """One slice of work; True when there is more to do at once. Raises `LogFailed`."""
        self.shelf.collect_made()
        if self._saving is not None:
            if not self._saving.done():
                return False
            self._finish()
        if self.on_hold:
            return False
        self.shelf.prefetch()
        if self.writer.rotations >= self.config.checkpoint_segments:
            self._begin()
        elif self._short():
            return self._free_some()
        return False

    def reclaim(self) -> bool:
        """Free what can be freed without rewriting, waiting for it; False when that was nothing."""
        if self._saving is not None:
            before = len(self.shelf.spares)
            self._finish()
            if len(self.shelf.spares) > before:
                return True
        if self.on_hold or not self._dead():
            return False
        self._begin()
        self._finish()
        return True

    def checkpoint(self) -> None:
        """Write one now and wait for it."""
        if self._saving is not None:
            self._finish()
        self._begin()
        self._finish()

    def _short(self) -> bool:
        """No spare is left (or being made), and the budget is used up."""
        return not self.shelf.spares and not self.shelf.making and self.shelf.total >= self.config.budget_segments

    def _dead(self) -> list[int]:
        position = self.writer.position.epoch
        return [epoch for epoch in self.shelf.sealed if epoch < position and not self.table.live_bytes.get(epoch)]

    def _free_some(self) -> bool:
        dead = len(self._dead())
        if not self._victim or not self.table.live_bytes.get(self._victim):
            self._victim = self._choose(CHEAP_LIVE_RATIO if dead else self.config.rewrite_live_ratio)
        if dead >= max(1, self.config.budget_segments // 5) or (dead and self._victim is None):
            self._begin()
            return False
        if self._victim is None:
            return False
        try:
            self._rewrite_slice(self._victim)
        except LogFull:
            self._victim = None
            return False
        return True

    def _choose(self, most: float) -> int | None:
        """The sealed segment with the least live payload, if moving it is worth while: up to the share `most` of it,
        or nearly all when the log is at its limit."""
        position, live_bytes = self.writer.position.epoch, self.table.live_bytes
        sealed = [epoch for epoch in self.shelf.sealed if epoch < position and live_bytes.get(epoch)]
        if not sealed:
            return None
        victim = min(sealed, key=lambda epoch: live_bytes[epoch])
        live = live_bytes[victim]
        at_limit = self.shelf.total >= self.config.limit and most != CHEAP_LIVE_RATIO
        worth = live <= (0.9 if at_limit else most) * self.config.segment_bytes
        return victim if worth and live <= self._room() else None

    def _room(self) -> int:
        """What rewrites may still write: the rest of the active segment, and segments that may yet be made."""
        more = len(self.shelf.spares) + max(0, self.config.limit + REWRITE_EXTRA - self.shelf.total)
        rest = self.config.segment_bytes - self.writer.position.offset if self.shelf.active is not None else 0
        return rest + more * (self.config.segment_bytes - DATA_START)

    def _rewrite_slice(self, epoch: int) -> None:
        """Move up to `SLICE_BYTES` of live blocks out of a segment."""
        segments = dict(self.shelf.sealed)
        if self.shelf.active is not None:
            segments[self.shelf.active.epoch] = self.shelf.active
        batches, size = [], 0
        for batch in self._moves(epoch, segments):
            batches.append(batch)
            size += batch.file_bytes
            if size >= min(SLICE_BYTES, self.config.segment_bytes // 4):
                break
        if batches:
            written = self.writer.write(batches, REWRITE_EXTRA)
            self.writer.stats.wal_rewritten_bytes += written

    def _moves(self, epoch: int, segments: dict[int, Segment]) -> Iterator[Batch]:
        for head in self.table.heads_in(epoch):
            row = self.table.rows[head]
            payload = read_block(self.table.rows, head, segments, self.config.shape)
            if payload is None:
                self.damaged_blocks += 1
                _log.warning(
                    "a block in %s no longer has its checksum: this shard still has it in memory, its next start will "
                    "not (is the disk failing?)",
                    segments[epoch].path,
                )
                self.table.drop(row["key"].tobytes())
                continue
            yield puts(
                row["key"],
                [payload],
                clock=row["clock"],
                valid=row["valid"],
                chain=row["chain"].tobytes(),
                session=row["session"],
                kind=Kind.REWRITE,
            )

    def _begin(self) -> None:
        """Take the index as it is now; what it names must be durable first."""
        self.writer.sync()
        self._freed_by_saving = self._dead()
        taken = Checkpoint(self.writer.position, self.table.snapshot(), self.table.last_clock)
        self.writer.rotations = 0
        self._saving = self._helper.submit(save, self.shelf.directory, self.config, taken)
        self._saving.add_done_callback(lambda _: self._wake())

    def _finish(self) -> None:
        saving, self._saving = self._saving, None
        assert saving is not None
        try:
            self.writer.stats.wal_written_bytes += saving.result()
        except OSError as error:
            self.writer.stats.wal_failures["write"] += 1
            failure = write_failure(self.shelf.directory, error)
            if isinstance(failure, LogFailed):
                raise failure from None
            return  # no room for a checkpoint: the old one stays good, segments are not freed
        self.checkpoints += 1
        self.shelf.retire(self._freed_by_saving)
        self.truncations += bool(self._freed_by_saving)
        self._freed_by_saving = []
