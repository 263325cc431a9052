"""One process a log directory: a lock file that the kernel releases when its process dies."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from kvstore.errors import LogFailed, LogLocked
from kvstore.log.files import open_regular

LOCK_NAME = "lock"


def open_failure(directory: Path, error: OSError) -> LogFailed:
    """One line for a log that cannot be opened."""
    advice = {
        errno.EACCES: "this user may not write there; choose another directory or change its owner",
        errno.EPERM: "this user may not write there; choose another directory or change its owner",
        errno.EROFS: "its file system is mounted read-only; choose another directory",
        errno.ENOTDIR: "a part of the path is no directory",
        errno.ENOENT: "the directory above it does not exist",
    }.get(error.errno or 0, "the file system refused it")
    where = error.filename or directory
    return LogFailed(f"cannot open the log in {directory}: {where}: {error.strerror}: {advice}")


class DirectoryLock:
    """Held from construction to `close`."""

    def __init__(self, directory: Path) -> None:
        """Raises `LogLocked` when another process (or this one) holds it, OSError when the file cannot be made."""
        path = directory / LOCK_NAME
        self._descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise LogLocked(
                f"log directory {directory} is in use by process {holder}: stop it, or choose another directory"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        os.close(self._descriptor)
