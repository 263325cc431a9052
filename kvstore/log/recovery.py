"""From a directory to the table of live blocks: the checkpoint, then every later record up to the torn tail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvstore.errors import LogCorrupt
from kvstore.log.checkpoint import START, Checkpoint, Position
from kvstore.log.config import LogConfig
from kvstore.log.identity import layout_sum
from kvstore.log.record import FIRST, LAST, RECORD, RECORD_BYTES, BlockShape, payload_sum
from kvstore.log.scan import flushed_before, length_at, strays, walk, whole
from kvstore.log.segment import DATA_START, Segment
from kvstore.log.table import NOBODY, LiveTable, Rows

_FLAGS = RECORD.fields["flags"][1]  # type: ignore[index]
MOVE_AWAY = "move the log directory away (the store then starts empty; its blocks can be recomputed)"
GO_ON = f"start with --drop-damaged to go on without them, or {MOVE_AWAY}"


class LiveEntry(NamedTuple):
    """A block as recovery found it, appends folded in; payload bytes behind `valid` tokens mean nothing."""

    key: bytes
    clock: int
    valid: int
    chain: bytes
    session: int
    payload: memoryview


@dataclass
class Replay:
    """Applies records to a table, batch by batch."""

    table: LiveTable
    config: LogConfig
    position: Position = START
    """Behind the last batch that counts."""
    records: int = 0
    torn_bytes: int = 0
    """Bytes behind the position that look like the beginning of something."""
    lost_records: int = 0
    """Left out since they lie behind damage (with `drop_damaged`)."""
    _pending: list[tuple[bytes, int, int]] = field(default_factory=list)

    def sealed(self, segment: Segment, start: Position, limit: int) -> None:
        """Replay a segment that others follow from `start` to `limit`. It was flushed as a whole before the next one
        began, so a gap in it is no torn tail. Raises `LogCorrupt`."""
        raw = memoryview(segment.read(limit - start.offset, start.offset))
        starts, sums = walk(raw, segment.epoch, start.previous)
        end = _end(raw, starts)
        if start.offset + end != limit:
            raise LogCorrupt(
                f"{segment.path} is damaged at byte {start.offset + end}, before its end at {limit}: {MOVE_AWAY}"
            )
        self._take(segment, start, raw, starts, sums)

    def newest(self, segment: Segment, start: Position) -> None:
        """Replay the last segment from `start` to where its records end: to the torn tail of what was not flushed.

        Raises `LogCorrupt` for a gap before what a whole record behind it says had been flushed, unless the damaged
        records may be dropped. A payload with the wrong sum before that point is left to who reads it.
        """
        raw = memoryview(segment.read(segment.size - start.offset, start.offset))
        starts, sums = walk(raw, segment.epoch, start.previous)
        end = _end(raw, starts)
        behind = strays(raw, segment.epoch, end)
        flushed = max((flushed_before(raw, at) for at in [*starts, *behind]), default=0) - start.offset
        if end < flushed:
            if not self.config.drop_damaged:
                raise LogCorrupt(
                    f"{segment.path} is damaged at byte {start.offset + end}, and {len(behind)} whole records behind "
                    f"it show that this is no torn tail: {GO_ON}"
                )
            self.lost_records = len(behind)
        count = next((row for row, at in enumerate(starts) if at >= flushed and not whole(raw, at)), len(starts))
        self._take(segment, start, raw, starts[:count], sums[:count])
        self.torn_bytes = end + start.offset - self.position.offset

    def _take(self, segment: Segment, start: Position, raw: memoryview, starts: list[int], sums: list[int]) -> None:
        self.position = Position(segment.epoch, start.offset, start.previous)
        for at, sealed in zip(starts, sums, strict=True):
            header = raw[at : at + RECORD_BYTES]
            if header[_FLAGS] & FIRST:
                self._pending.clear()
            self._pending.append((bytes(header), segment.epoch, start.offset + at))
            if header[_FLAGS] & LAST:
                self._apply()
                self.position = Position(segment.epoch, start.offset + at + length_at(raw, at), sealed)

    def _apply(self) -> None:
        pending, self._pending = self._pending, []
        headers = np.frombuffer(b"".join(header for header, _, _ in pending), RECORD)
        epochs = np.array([epoch for _, epoch, _ in pending], np.uint64)
        self.table.apply(headers, epochs, np.array([offset for _, _, offset in pending], np.int64))
        self.records += len(pending)


def _end(raw: memoryview, starts: list[int]) -> int:
    return starts[-1] + length_at(raw, starts[-1]) if starts else 0


def replay(
    directory: Path, config: LogConfig, checkpoint: Checkpoint | None, segments: list[Segment], newest: int
) -> Replay:
    """The state of a log; `newest` is the highest epoch that was acknowledged. Raises `LogCorrupt` where something
    durable is missing."""
    if checkpoint is None:
        used = [segment.path.name for segment in segments if segment.epoch]
        if used or newest:
            first = f"segments ({used[0]} …)" if used else "had segments"
            raise LogCorrupt(f"the log in {directory} has {first} but no checkpoint, it was deleted: {MOVE_AWAY}")
        return Replay(LiveTable(), config)
    result = Replay(LiveTable.restore(checkpoint.rows, checkpoint.last_clock), config, checkpoint.position)
    by_epoch = _by_epoch(segments)
    start = checkpoint.position
    last = max(newest, start.epoch, *by_epoch)
    for epoch in sorted({*result.table.live_bytes, *range(max(1, start.epoch), last + 1)}):
        _require_usable(directory, config, by_epoch.get(epoch), epoch)
    for epoch in range(max(1, start.epoch), last + 1):
        segment = by_epoch[epoch]
        assert segment.header is not None
        begin = start if epoch == start.epoch else Position(epoch, DATA_START, segment.header.seed)
        following = by_epoch.get(epoch + 1)
        if following is None or following.header is None:
            result.newest(segment, begin)
        else:
            result.sealed(segment, begin, following.header.previous_end)
    return result


def _by_epoch(segments: list[Segment]) -> dict[int, Segment]:
    """Raises `LogCorrupt` for two files of one epoch: one of them was copied there."""
    found: dict[int, Segment] = {}
    for segment in segments:
        if not segment.epoch:
            continue
        other = found.setdefault(segment.epoch, segment)
        if other is not segment:
            raise LogCorrupt(
                f"{other.path} and {segment.path} are the same segment (epoch {segment.epoch}), one of them is a copy: "
                "delete that one"
            )
    return found


def _require_usable(directory: Path, config: LogConfig, segment: Segment | None, epoch: int) -> None:
    """Raise `LogCorrupt` unless the segment that recovery needs is there, of this log and of its full size."""
    if segment is None or segment.header is None:
        raise LogCorrupt(
            f"the log in {directory} lacks the segment of epoch {epoch} (deleted, or its first bytes are damaged): "
            f"{MOVE_AWAY}"
        )
    if segment.size != segment.header.segment_bytes:
        raise LogCorrupt(
            f"{segment.path} has {segment.size} bytes, it was made with {segment.header.segment_bytes}: {MOVE_AWAY}"
        )
    if segment.header.layout != layout_sum(config.layout):
        raise LogCorrupt(f"{segment.path} belongs to a log of another layout: {MOVE_AWAY}")


class Entries:
    """Reads live blocks out of the segments, in the order in which they were last written."""

    def __init__(self, rows: Rows, segments: dict[int, Segment], shape: BlockShape) -> None:
        self._rows = rows
        self._segments = segments
        self._shape = shape
        self.damaged: list[tuple[bytes, str]] = []
        """Keys whose payload no longer has its checksum, and the file of each: not yielded."""

    def __len__(self) -> int:
        """Blocks, the damaged ones among them."""
        return len(self._rows) - int(np.count_nonzero(self._rows["before"] != NOBODY))

    def __iter__(self) -> Iterator[LiveEntry]:
        rows = self._rows
        older = rows["before"][rows["before"] != NOBODY]
        heads = np.setdiff1d(np.arange(len(rows)), older)
        for head in heads[np.lexsort((rows["offset"][heads], rows["epoch"][heads]))].tolist():
            key = rows["key"][head].tobytes()
            payload = read_block(rows, head, self._segments, self._shape)
            if payload is None:
                self.damaged.append((key, self._segments[int(rows["epoch"][head])].path.name))
                continue
            row = rows[head]
            yield LiveEntry(
                key,
                int(row["clock"]),
                int(row["valid"]),
                row["chain"].tobytes(),
                int(row["session"]),
                payload,
            )


def read_block(rows: Rows, head: int, segments: dict[int, Segment], shape: BlockShape) -> memoryview | None:
    """The payload of the block of newest row `head`, appends folded in; None if a checksum does not agree."""
    pieces = []
    row = head
    while row != NOBODY:
        pieces.append(row)
        row = int(rows["before"][row])
    block: memoryview | None = None
    for piece in reversed(pieces):
        found = rows[piece]
        size = int(found["payload_bytes"])
        raw = segments[int(found["epoch"])].read(size, int(found["offset"]) + RECORD_BYTES)
        if len(raw) != size or payload_sum(raw) != int(found["payload_sum"]):
            return None
        if size == shape.block_bytes:
            block = memoryview(raw)
            continue
        folded = bytearray(shape.block_bytes) if block is None else bytearray(block)
        shape.scatter(folded, raw, int(found["first"]), int(found["valid"]))
        block = memoryview(folded)
    stated = int(rows["block_sum"][head])
    # A whole block has none: its payload's sum says it all.
    if stated and block is not None and shape.sum_of(block, int(rows["valid"][head])) != stated:
        return None
    return block
