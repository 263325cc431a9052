"""The highest epoch in which anything was made durable: a small file that tells a lost segment from one never begun.

It is written behind the first flush of a segment and before that flush is acknowledged: one more fdatasync a segment.
Two places take turns, each on a page of its own, so that a torn write loses only what was not acknowledged.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import xxhash

from kvstore.errors import LogCorrupt
from kvstore.log.files import open_regular, read_all, sync_directory

NEWEST_NAME = "newest"
_MAGIC = b"kvsnew2\0"
_FIELDS = struct.Struct("<8sQ")
"""magic, epoch; then xxh3-64 of both."""
_ENTRY_BYTES = _FIELDS.size + 8
_PLACE_BYTES = 4096


class Newest:
    """Open from construction to `close`."""

    def __init__(self, directory: Path, *, fresh: bool) -> None:
        """`fresh`: the log has no checkpoint yet, so the file may be missing or half made. Raises `LogCorrupt` where it
        must be there and says nothing; OSErrors pass through."""
        path = directory / NEWEST_NAME
        self._descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        places = (read_all(self._descriptor, _ENTRY_BYTES, _PLACE_BYTES * place) for place in range(2))
        epochs = [epoch for epoch in map(_decoded, places) if epoch is not None]
        if not epochs and not fresh:
            os.close(self._descriptor)
            raise LogCorrupt(
                f"{path}, which says how far the log goes, is missing or damaged: move the log directory away (the "
                "store then starts empty; its blocks can be recomputed)"
            )
        self.epoch = max(epochs, default=0)
        if not epochs:
            os.pwrite(self._descriptor, _encoded(0).ljust(2 * _PLACE_BYTES, b"\0"), 0)
            os.fsync(self._descriptor)
            sync_directory(directory)

    def note(self, epoch: int) -> int:
        """Something of `epoch` is durable; so is this when it returns. Bytes written, 0 where it was known."""
        if epoch <= self.epoch:
            return 0
        os.pwrite(self._descriptor, _encoded(epoch), _PLACE_BYTES * (epoch % 2))
        os.fdatasync(self._descriptor)
        self.epoch = epoch
        return _ENTRY_BYTES

    def close(self) -> None:
        os.close(self._descriptor)


def _encoded(epoch: int) -> bytes:
    body = _FIELDS.pack(_MAGIC, epoch)
    return body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")


def _decoded(raw: bytes) -> int | None:
    if len(raw) < _ENTRY_BYTES:
        return None
    magic, epoch = _FIELDS.unpack(raw[: _FIELDS.size])
    return int(epoch) if raw == _encoded(epoch) and magic == _MAGIC else None
