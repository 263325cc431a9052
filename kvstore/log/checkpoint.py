"""A checkpoint: the index only, and the position up to which it holds. Replaced as a whole, by a rename."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from kvstore.errors import LayoutMismatch, LogCorrupt
from kvstore.log.config import LogConfig
from kvstore.log.files import open_regular, read_all, sync_directory
from kvstore.log.identity import require_layout
from kvstore.log.record import BlockShape
from kvstore.log.segment import DATA_START
from kvstore.log.table import ROW, Rows

CHECKPOINT_NAME = "checkpoint"
FORMAT = b"2"
"""Of the whole log: what segments, records and checkpoints look like."""
_KIND = b"kvsckpt"
_FIELDS = struct.Struct("<8sQQQQQQQQQQ")
"""magic, epoch, offset, previous checksum, rows, last clock, planes, tokens, token bytes, bytes of the layout, sum of
the body; then the sum of these bytes, then the body: the layout and the rows."""


class Position(NamedTuple):
    """A place between two records: segment epoch, byte offset, checksum of the record before."""

    epoch: int
    offset: int
    previous: int


START = Position(0, DATA_START, 0)
"""Before the first segment."""


class Checkpoint(NamedTuple):
    """What a checkpoint file holds; `rows` `[n]` of `ROW`."""

    position: Position
    rows: Rows
    last_clock: int


def save(directory: Path, config: LogConfig, checkpoint: Checkpoint) -> int:
    """Write and make durable; returns the bytes written. OSErrors pass through, the old checkpoint then stays."""
    layout, shape = config.layout.encode(), config.shape
    body = layout + checkpoint.rows.tobytes()
    head = _FIELDS.pack(
        _KIND + FORMAT,
        *checkpoint.position,
        len(checkpoint.rows),
        checkpoint.last_clock,
        shape.planes,
        shape.tokens,
        shape.token_bytes,
        len(layout),
        xxhash.xxh3_64_intdigest(body),
    )
    head += xxhash.xxh3_64_intdigest(head).to_bytes(8, "little")
    making = directory / f"{CHECKPOINT_NAME}.making"
    descriptor = open_regular(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        for part in (head, body):
            view = memoryview(part)
            while view:
                view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(making, directory / CHECKPOINT_NAME)
    sync_directory(directory)
    return len(head) + len(body)


def load(directory: Path, config: LogConfig) -> Checkpoint | None:
    """None when there is none. Raises `LogCorrupt`, `LayoutMismatch` when the log holds blocks of another layout."""
    path = directory / CHECKPOINT_NAME
    raw = _read(path)
    if raw is None:
        return None
    head, body = raw[: _FIELDS.size], raw[_FIELDS.size + 8 :]
    found = head[: len(_KIND)], head[len(_KIND) : len(_KIND) + 1]
    if found[0] == _KIND and found[1].isdigit() and found[1] != FORMAT:
        raise LogCorrupt(
            f"the log in {directory} is of format {found[1].decode()}, this version reads and writes format "
            f"{FORMAT.decode()}: move the log directory away (the store then starts empty)"
        )
    if raw[_FIELDS.size : _FIELDS.size + 8] != xxhash.xxh3_64_intdigest(head).to_bytes(8, "little"):
        raise _damaged(path)
    magic, epoch, offset, previous, count, last_clock, *shape, layout_bytes, stated = _FIELDS.unpack(head)
    if magic != _KIND + FORMAT or len(body) != layout_bytes + count * ROW.itemsize:
        raise _damaged(path)
    if xxhash.xxh3_64_intdigest(body) != stated:
        raise _damaged(path)
    require_layout(directory, body[:layout_bytes].decode(), config.layout)
    _require_shape(directory, shape, config.shape)
    return Checkpoint(Position(epoch, offset, previous), np.frombuffer(body[layout_bytes:], ROW).copy(), last_clock)


def _read(path: Path) -> bytes | None:
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return read_all(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)


def _require_shape(directory: Path, theirs: list[int], ours: BlockShape) -> None:
    """For logs whose layout nobody named."""
    names = ("planes", "block_tokens", "token_bytes")
    for name, have, want in zip(names, theirs, (ours.planes, ours.tokens, ours.token_bytes), strict=True):
        if have != want:
            raise LayoutMismatch(
                f"the log in {directory} holds blocks with {name} {have}, this store has {want}: "
                "use that layout, or another log directory"
            )


def _damaged(path: Path) -> LogCorrupt:
    return LogCorrupt(
        f"{path} is damaged: move the log directory away (the store then starts empty; its blocks can be recomputed)"
    )
