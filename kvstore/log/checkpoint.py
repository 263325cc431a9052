"""A checkpoint: the index only, and the position up to which it holds. Replaced as a whole, by a rename."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from kvstore.errors import LayoutMismatch, LogCorrupt
from kvstore.log.record import BlockShape
from kvstore.log.segment import DATA_START, sync_directory
from kvstore.log.table import ROW, Rows

CHECKPOINT_NAME = "checkpoint"
_MAGIC = b"kvsckpt1"
_FIELDS = struct.Struct("<8sQQQQQQQQQ")
"""magic, epoch, offset, previous checksum, rows, last clock, planes, tokens, token bytes, sum of the rows; then the sum
of these bytes."""


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


def save(directory: Path, shape: BlockShape, checkpoint: Checkpoint) -> int:
    """Write and make durable; returns the bytes written. OSErrors pass through, the old checkpoint then stays."""
    body = checkpoint.rows.tobytes()
    head = _FIELDS.pack(
        _MAGIC,
        *checkpoint.position,
        len(checkpoint.rows),
        checkpoint.last_clock,
        shape.planes,
        shape.tokens,
        shape.token_bytes,
        xxhash.xxh3_64_intdigest(body),
    )
    head += xxhash.xxh3_64_intdigest(head).to_bytes(8, "little")
    making = directory / f"{CHECKPOINT_NAME}.making"
    descriptor = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
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


def load(directory: Path, shape: BlockShape) -> Checkpoint | None:
    """None when there is none. Raises `LogCorrupt`, and `LayoutMismatch` when the log holds blocks of another shape."""
    path = directory / CHECKPOINT_NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    head, body = raw[: _FIELDS.size], raw[_FIELDS.size + 8 :]
    if raw[_FIELDS.size : _FIELDS.size + 8] != xxhash.xxh3_64_intdigest(head).to_bytes(8, "little"):
        raise _damaged(path)
    magic, epoch, offset, previous, count, last_clock, planes, tokens, token_bytes, stated = _FIELDS.unpack(head)
    if magic != _MAGIC or len(body) != count * ROW.itemsize or xxhash.xxh3_64_intdigest(body) != stated:
        raise _damaged(path)
    for name, theirs, ours in (
        ("planes", planes, shape.planes),
        ("block_tokens", tokens, shape.tokens),
        ("token_bytes", token_bytes, shape.token_bytes),
    ):
        if theirs != ours:
            raise LayoutMismatch(
                f"the log in {directory} holds blocks with {name} {theirs}, this store has {ours}: "
                "use that layout, or another log directory"
            )
    return Checkpoint(Position(epoch, offset, previous), np.frombuffer(body, ROW).copy(), last_clock)


def _damaged(path: Path) -> LogCorrupt:
    return LogCorrupt(
        f"{path} is damaged: move the log directory away (the store then starts empty; its blocks can be recomputed)"
    )
