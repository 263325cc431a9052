"""The one place where records are written: behind each other, in the active segment, then in the next one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvstore.errors import LogFailed
from kvstore.log.checkpoint import Position
from kvstore.log.identity import layout_sum
from kvstore.log.newest import Newest
from kvstore.log.record import FIRST, LAST, RECORD_BYTES, Batch, Records, seal
from kvstore.log.segment import DATA_START, HEADER_BYTES, Segment, SegmentHeader
from kvstore.log.shelf import Shelf, write_failure
from kvstore.log.stats import WalMeters
from kvstore.log.table import LiveTable

_PADDING = tuple(bytes(size) for size in range(8))


class Writer:
    """Owned by the flusher thread. `position` is the end of what counts."""

    def __init__(self, shelf: Shelf, table: LiveTable, position: Position, stats: WalMeters, newest: Newest) -> None:
        self.shelf = shelf
        self.table = table
        self.position = position
        self.stats = stats
        self.newest = newest
        self._layout = layout_sum(shelf.config.layout)
        self._durable = DATA_START
        """How much of the active segment was flushed."""
        self.rotations = 0
        """Segments begun since the last checkpoint."""

    def write(self, batches: Sequence[Batch], extra: int = 0) -> int:
        """Write whole batches and note where their records lie; returns the bytes written.

        All or nothing counts: on `LogFull` the position and the table are as before. Raises `LogFailed`.
        """
        for batch in batches:
            batch.headers["flags"] = 0
            batch.headers["flags"][0] |= FIRST
            batch.headers["flags"][-1] |= LAST
        whole = batches[0] if len(batches) == 1 else Batch.joined(*batches)
        headers, payloads = whole.headers, whole.payloads
        lengths = headers["length"].astype(np.int64)
        spans = self._split(lengths)
        self.shelf.reserve(len(spans) - 1, extra)
        epochs = np.empty(len(headers), np.uint64)
        offsets = np.empty(len(headers), np.int64)
        written = 0
        for number, (start, stop) in enumerate(spans):
            if number:
                self._rotate()
            if stop == start:
                continue
            end = self.position.offset + np.cumsum(lengths[start:stop])
            offsets[start:stop] = end - lengths[start:stop]
            epochs[start:stop] = self.position.epoch
            written += self._write_span(headers[start:stop], payloads[start:stop], int(end[-1]))
        self.table.apply(headers, epochs, offsets)
        return written

    def sync(self) -> float:
        """fdatasync of the active segment; returns seconds. Raises `LogFailed`: never try again after that."""
        began = time.perf_counter()
        if self.shelf.active is not None:
            try:
                self.shelf.active.sync()
                self.stats.wal_written_bytes += self.newest.note(self.shelf.active.epoch)
            except OSError as error:
                self.stats.wal_failures["flush"] += 1
                raise LogFailed(
                    f"cannot flush the log in {self.shelf.directory}: {error.strerror}: the shard must stop, since "
                    "the kernel may have dropped what it could not write"
                ) from None
            self._durable = self.position.offset
        return time.perf_counter() - began

    def _split(self, lengths: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
        """Record ranges by segment; the first range (perhaps empty) goes to the active one."""
        capacity = self.shelf.config.segment_bytes
        room = capacity - self.position.offset if self.shelf.active is not None else 0
        ends = np.cumsum(lengths)
        spans: list[tuple[int, int]] = []
        start, base = 0, 0
        while start < len(lengths):
            stop = int(np.searchsorted(ends, base + room, side="right"))
            spans.append((start, stop))
            base = int(ends[stop - 1]) if stop else 0
            start, room = stop, capacity - DATA_START
        return spans

    def _rotate(self) -> None:
        """Seal the active segment, once it is durable as a whole, and begin a spare."""
        shelf, old = self.shelf, self.shelf.active
        if old is not None:
            self.sync()
            old.end = self.position.offset
            shelf.sealed[old.epoch] = old
        segment = shelf.spares.pop(0)
        position, size = self.position, shelf.config.segment_bytes
        header = SegmentHeader(position.epoch + 1, position.epoch, position.offset, size, self._layout)
        try:
            segment.begin(header)
        except OSError as error:
            self.stats.wal_failures["write"] += 1
            raise LogFailed(str(write_failure(shelf.directory, error))) from None
        shelf.active = segment
        self.rotations += 1
        self.stats.wal_written_bytes += HEADER_BYTES
        self.position = Position(header.epoch, DATA_START, header.seed)
        self._durable = DATA_START

    def _write_span(self, headers: Records, payloads: Sequence[memoryview | None], end: int) -> int:
        segment, start = self.shelf.active, self.position.offset
        assert segment is not None
        last = seal(headers, payloads, self.position.epoch, self.position.previous, self._durable)
        try:
            written = segment.write(buffers(headers, payloads), start)
        except OSError as error:
            self.stats.wal_failures["write"] += 1
            self._erase(segment, start)
            raise write_failure(self.shelf.directory, error) from None
        self.position = Position(self.position.epoch, end, last)
        self.stats.wal_written_bytes += written
        return written

    @staticmethod
    def _erase(segment: Segment, offset: int) -> None:
        """Best effort: what was refused should not be found by a recovery."""
        with contextlib.suppress(OSError):
            segment.write([bytes(RECORD_BYTES)], offset)


def buffers(headers: Records, payloads: Sequence[memoryview | None]) -> list[memoryview | bytes]:
    """What to write for sealed records, without copying a payload."""
    raw = headers.view(np.uint8).data
    if all(payload is None for payload in payloads):
        return [raw]
    found: list[memoryview | bytes] = []
    for number, payload in enumerate(payloads):
        found.append(raw[number * RECORD_BYTES : (number + 1) * RECORD_BYTES])
        if payload is not None:
            found.append(payload)
            padding = -len(payload) % 8
            if padding:
                found.append(_PADDING[padding])
    return found
