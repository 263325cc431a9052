"""Opening the log's files: only regular ones, so that a FIFO in the directory does not block for ever."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kvstore.errors import LogFailed


def open_regular(path: Path, flags: int) -> int:
    """A descriptor of a regular file. Raises `LogFailed` for anything else; OSErrors pass through."""
    # Without O_NONBLOCK the open of a FIFO waits for its other end.
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise LogFailed(f"cannot open the log: {path} is no regular file: move it away")


def read_all(descriptor: int, size: int, offset: int) -> bytes:
    """`size` bytes, or fewer at the end of the file: one pread gives at most 2 GiB."""
    parts = []
    while size > 0 and (part := os.pread(descriptor, size, offset)):
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def sync_directory(directory: Path) -> None:
    """Make names durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
