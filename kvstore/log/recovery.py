"""From a directory to the table of live blocks: the checkpoint, then every later record up to the torn tail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvstore.errors import LogCorrupt
from kvstore.log.checkpoint import START, Checkpoint, Position
from kvstore.log.record import FIRST, LAST, RECORD, RECORD_BYTES, BlockShape, checksum, payload_sum
from kvstore.log.segment import DATA_START, Segment
from kvstore.log.table import NOBODY, LiveTable, Rows

_FLAGS = RECORD.fields["flags"][1]  # type: ignore[index]
_PAYLOAD_SUM = RECORD.fields["payload_sum"][1]  # type: ignore[index]
_PAYLOAD_BYTES = RECORD.fields["payload_bytes"][1]  # type: ignore[index]
_PREVIOUS = RECORD.fields["previous"][1]  # type: ignore[index]
_CHECKSUM = RECORD.fields["checksum"][1]  # type: ignore[index]


class LiveEntry(NamedTuple):
    """A block as recovery found it, appends folded in; payload bytes behind `valid` tokens mean nothing."""

    key: bytes
    clock: int
    valid: int
    chain: bytes
    session: int
    generation: int
    payload: memoryview


@dataclass
class Replay:
    """Applies records to a table, batch by batch."""

    table: LiveTable
    position: Position = START
    """Behind the last batch that counts."""
    records: int = 0
    torn_bytes: int = 0
    """Bytes behind the position that look like the beginning of something."""
    _pending: list[tuple[bytes, int, int]] = field(default_factory=list)

    def segment(self, segment: Segment, start: Position, limit: int, *, newest: bool) -> None:
        """Replay one segment from `start` to `limit`. Raises `LogCorrupt` if one that is not the newest ends early:
        it was flushed as a whole before the next one began, so this is no torn tail."""
        raw = memoryview(segment.read(limit - start.offset, start.offset))
        at, previous = 0, start.previous
        end = Position(segment.epoch, start.offset, start.previous)
        while at + RECORD_BYTES <= len(raw):
            length = _word(raw, at, 4)
            if not RECORD_BYTES <= length <= len(raw) - at:
                break
            header = raw[at : at + RECORD_BYTES]
            sealed = _word(header, _CHECKSUM, 8)
            if _word(header, _PREVIOUS, 8) != previous or checksum(header, segment.epoch) != sealed:
                break
            if newest and not _whole(raw, at, header):
                break
            if header[_FLAGS] & FIRST:
                self._pending.clear()
            self._pending.append((bytes(header), segment.epoch, start.offset + at))
            at, previous = at + length, sealed
            if header[_FLAGS] & LAST:
                self._apply()
                end = Position(segment.epoch, start.offset + at, previous)
        if not newest and start.offset + at != limit:
            raise LogCorrupt(
                f"{segment.path} is damaged at byte {start.offset + at}, before its end at {limit}: move the log "
                "directory away (the store then starts empty; its blocks can be recomputed)"
            )
        self.position = end
        self.torn_bytes = int(at + start.offset - end.offset) if newest else 0

    def _apply(self) -> None:
        pending, self._pending = self._pending, []
        headers = np.frombuffer(b"".join(header for header, _, _ in pending), RECORD)
        epochs = np.array([epoch for _, epoch, _ in pending], np.uint64)
        self.table.apply(headers, epochs, np.array([offset for _, _, offset in pending], np.int64))
        self.records += len(pending)


def replay(directory: Path, checkpoint: Checkpoint | None, segments: list[Segment]) -> Replay:
    """The state of a log. Raises `LogCorrupt` where something durable is missing."""
    if checkpoint is None:
        used = [segment.path.name for segment in segments if segment.epoch]
        if used:
            raise LogCorrupt(f"the log in {directory} has segments ({used[0]} …) but no checkpoint: it was deleted")
        return Replay(LiveTable())
    result = Replay(LiveTable.restore(checkpoint.rows, checkpoint.last_clock), checkpoint.position)
    by_epoch = {segment.epoch: segment for segment in segments if segment.epoch}
    missing = set(result.table.live_bytes) - set(by_epoch)
    if missing:
        raise LogCorrupt(f"the log in {directory} lacks the segment of epoch {min(missing)}, which holds live blocks")
    start, epoch = checkpoint.position, checkpoint.position.epoch
    later = sorted(found for found in by_epoch if found > epoch)
    if later and later != list(range(epoch + 1, epoch + 1 + len(later))):
        raise LogCorrupt(f"the log in {directory} lacks a segment between epochs {epoch} and {later[-1]}")
    for current in ([epoch] if epoch in by_epoch else []) + later:
        segment, following = by_epoch[current], by_epoch.get(current + 1)
        begin = start if current == epoch else Position(current, DATA_START, segment.header.seed)  # type: ignore[union-attr]
        limit = following.header.previous_end if following and following.header else segment.size
        result.segment(segment, begin, limit, newest=following is None)
    return result


class Entries:
    """Reads live blocks out of the segments, in the order in which they were last written."""

    def __init__(self, rows: Rows, segments: dict[int, Segment], shape: BlockShape) -> None:
        self._rows = rows
        self._segments = segments
        self._shape = shape
        self.damaged: list[bytes] = []
        """Keys whose payload no longer has its checksum: not yielded, a miss from now on."""

    def __iter__(self) -> Iterator[LiveEntry]:
        rows = self._rows
        older = rows["before"][rows["before"] != NOBODY]
        heads = np.setdiff1d(np.arange(len(rows)), older)
        for head in heads[np.lexsort((rows["offset"][heads], rows["epoch"][heads]))].tolist():
            key = rows["key"][head].tobytes()
            payload = read_block(rows, head, self._segments, self._shape)
            if payload is None:
                self.damaged.append(key)
                continue
            row = rows[head]
            yield LiveEntry(
                key,
                int(row["clock"]),
                int(row["valid"]),
                row["chain"].tobytes(),
                int(row["session"]),
                int(row["generation"]),
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
    return block


def _word(raw: memoryview, at: int, size: int) -> int:
    return int.from_bytes(raw[at : at + size], "little")


def _whole(raw: memoryview, at: int, header: memoryview) -> bool:
    size = _word(header, _PAYLOAD_BYTES, 4)
    payload = raw[at + RECORD_BYTES : at + RECORD_BYTES + size]
    return size == 0 or payload_sum(payload) == _word(header, _PAYLOAD_SUM, 8)
