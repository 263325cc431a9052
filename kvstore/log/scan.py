"""Reading a segment's records: those that follow each other, and what behind them proves that they once were more.

Each record says how much of its segment had been flushed before it was written. So a gap before that point is damage,
and a gap behind the last such point is the torn tail of what nobody was promised.
"""

from __future__ import annotations

import numpy as np

from kvstore.log.record import RECORD, RECORD_BYTES, Kind, checksum, payload_sum

_LENGTH = RECORD.fields["length"][1]  # type: ignore[index]
_DURABLE = RECORD.fields["durable"][1]  # type: ignore[index]
_PAYLOAD_SUM = RECORD.fields["payload_sum"][1]  # type: ignore[index]
_PAYLOAD_BYTES = RECORD.fields["payload_bytes"][1]  # type: ignore[index]
_PREVIOUS = RECORD.fields["previous"][1]  # type: ignore[index]
_CHECKSUM = RECORD.fields["checksum"][1]  # type: ignore[index]
_STEP = 8
"""Records begin at multiples of it."""
_CHUNK = 4 << 20
_MOST_FLAGS = 3


def walk(raw: memoryview, epoch: int, previous: int) -> tuple[list[int], list[int]]:
    """Where the records begin that follow each other from the start of `raw` on, and the checksum of each.

    The first continues a record whose checksum was `previous`. Payloads are not looked at.
    """
    starts: list[int] = []
    sums: list[int] = []
    at = 0
    while at + RECORD_BYTES <= len(raw):
        length = length_at(raw, at)
        if not RECORD_BYTES <= length <= len(raw) - at:
            break
        header = raw[at : at + RECORD_BYTES]
        sealed = _word(header, _CHECKSUM, 8)
        if _word(header, _PREVIOUS, 8) != previous or checksum(header, epoch) != sealed:
            break
        starts.append(at)
        sums.append(sealed)
        at, previous = at + length, sealed
    return starts, sums


def strays(raw: memoryview, epoch: int, start: int) -> list[int]:
    """Where behind `start` headers of this epoch lie that follow nothing: what damage, or a torn tail, left behind."""
    found = []
    for begin in range(start, len(raw) - RECORD_BYTES + 1, _CHUNK):
        piece = np.frombuffer(raw[begin : min(begin + _CHUNK, len(raw) // _STEP * _STEP)], "<u4")
        length, rest = piece[0::2], piece[1::2]
        kind, flags = rest & 0xFF, (rest >> 8) & 0xFF
        likely = (length >= RECORD_BYTES) & (length % _STEP == 0) & (length <= len(raw) - begin) & (rest >> 16 == 0)
        likely &= (kind >= min(Kind)) & (kind <= max(Kind)) & (flags <= _MOST_FLAGS)
        for place in np.flatnonzero(likely).tolist():
            at = begin + place * _STEP
            header = raw[at : at + RECORD_BYTES]
            if len(header) == RECORD_BYTES and checksum(header, epoch) == _word(header, _CHECKSUM, 8):
                found.append(at)
    return found


def length_at(raw: memoryview, at: int) -> int:
    """What the record at `at` takes in its segment."""
    return _word(raw, at + _LENGTH, 4)


def flushed_before(raw: memoryview, at: int) -> int:
    """Up to which offset of its segment all was durable before the record at `at` was written."""
    return _word(raw, at + _DURABLE, 4)


def whole(raw: memoryview, at: int) -> bool:
    """Whether the payload of the record at `at` has its checksum."""
    size = _word(raw, at + _PAYLOAD_BYTES, 4)
    payload = raw[at + RECORD_BYTES : at + RECORD_BYTES + size]
    return size == 0 or payload_sum(payload) == _word(raw, at + _PAYLOAD_SUM, 8)


def _word(raw: memoryview, at: int, size: int) -> int:
    return int.from_bytes(raw[at : at + size], "little")
