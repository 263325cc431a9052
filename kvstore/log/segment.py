"""A segment: one file of fixed size, zero-written before its first use and used again and again, always in place.

Its first 4096 bytes are its own page; their first 64 hold the header. The epoch counts openings over the whole log, so
a segment that is used again has a new one. `previous_end` says where the segment before it ended: recovery neither
stops before that point nor reads beyond it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from kvstore.log.files import open_regular, read_all, sync_directory

Buffers = Sequence[memoryview | bytes]

DATA_START = 4096
_MAGIC = b"kvslog2\0"
_FIELDS = struct.Struct("<8sQQQQQQ")
"""magic, epoch, previous epoch, previous end, segment bytes, layout's sum, spare; then xxh3-64 of these 56 bytes."""
HEADER_BYTES = 64
_IOV_MAX = 1024
_ZERO_CHUNK = 1 << 20
_NAME = "segment-{:05d}"
NAME_PATTERN = "segment-?????"


@dataclass(frozen=True)
class SegmentHeader:
    """What the first bytes of a segment say."""

    epoch: int
    previous_epoch: int
    previous_end: int
    segment_bytes: int
    layout: int
    """See `identity.layout_sum`."""

    def encode(self) -> bytes:
        body = _FIELDS.pack(
            _MAGIC, self.epoch, self.previous_epoch, self.previous_end, self.segment_bytes, self.layout, 0
        )
        return body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")

    @classmethod
    def decode(cls, raw: bytes) -> SegmentHeader | None:
        """None when these bytes are no whole header (never used, or torn)."""
        body, stated = raw[: _FIELDS.size], raw[_FIELDS.size : HEADER_BYTES]
        if len(raw) < HEADER_BYTES or xxhash.xxh3_64_intdigest(body).to_bytes(8, "little") != stated:
            return None
        magic, epoch, previous_epoch, previous_end, segment_bytes, layout, _ = _FIELDS.unpack(body)
        return cls(epoch, previous_epoch, previous_end, segment_bytes, layout) if magic == _MAGIC else None

    @property
    def seed(self) -> int:
        """What the first record of the segment names as its predecessor's checksum."""
        return xxhash.xxh3_64_intdigest(self.encode())


class Segment:
    """One open segment file. OSErrors pass through."""

    __slots__ = ("descriptor", "end", "header", "number", "path")

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self.number = number
        self.descriptor = open_regular(path, os.O_RDWR)
        self.header = SegmentHeader.decode(os.pread(self.descriptor, HEADER_BYTES, 0))
        self.end = DATA_START
        """Behind the last record that counts."""

    @property
    def epoch(self) -> int:
        """0 for a segment that was never used."""
        return self.header.epoch if self.header else 0

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def begin(self, header: SegmentHeader) -> None:
        """Use it (again): everything that it held before stops to parse."""
        os.pwrite(self.descriptor, header.encode(), 0)
        self.header = header
        self.end = DATA_START

    def write(self, buffers: Buffers, offset: int) -> int:
        """Write `buffers` one behind the other from `offset` on; returns the bytes written."""
        start = offset
        for first in range(0, len(buffers), _IOV_MAX):
            offset += self._write_all(list(buffers[first : first + _IOV_MAX]), offset)
        return offset - start

    def _write_all(self, buffers: list[memoryview | bytes], offset: int) -> int:
        total = sum(len(buffer) for buffer in buffers)
        done = os.pwritev(self.descriptor, buffers, offset)
        while done < total:
            rest = b"".join(buffers)[done:]
            done += os.pwrite(self.descriptor, rest, offset + done)
        return total

    def read(self, size: int, offset: int) -> bytes:
        return read_all(self.descriptor, size, offset)

    def erase(self, offset: int) -> None:
        """Zeros from `offset` to the end: what lies there is given up, and the next recovery shall not find it."""
        for start in range(offset, self.size, _ZERO_CHUNK):
            self.write([bytes(min(_ZERO_CHUNK, self.size - start))], start)

    def sync(self) -> None:
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)

    def delete(self) -> None:
        """For a segment of another size than this log's."""
        self.close()
        self.path.unlink()


def create(directory: Path, number: int, size: int) -> Segment:
    """A new segment, really written with zeros and durable with its name; nothing is left behind on an OSError.

    Zeros are written, not only reserved: a later fdatasync then has no extent to convert and no size to update.
    """
    path = directory / _NAME.format(number)
    making = path.with_suffix(".making")
    descriptor = os.open(making, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        try:
            os.posix_fallocate(descriptor, 0, size)
            zeros = bytes(min(size, _ZERO_CHUNK))
            for offset in range(0, size, len(zeros)):
                part = memoryview(zeros)[: size - offset]
                written = 0
                while written < len(part):
                    written += os.pwrite(descriptor, part[written:], offset + written)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(making, path)
    except OSError:
        making.unlink(missing_ok=True)
        raise
    sync_directory(directory)
    return Segment(path, number)
