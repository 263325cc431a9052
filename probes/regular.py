"""Files that can be read to their end: a pipe, a socket or a terminal would be waited for."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path


class NotRegularError(OSError):
    """A path that is there and is no regular file; the message says what it is."""


def kind(mode: int) -> str:
    """What a file that is not regular is, in words; empty for a regular one."""
    if stat.S_ISREG(mode):
        return ""
    if stat.S_ISDIR(mode):
        return "a directory"
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def refuse_irregular(path: Path) -> None:
    """Raise ``NotRegularError`` for what is no regular file, ``OSError`` for what is not there."""
    if found := kind(path.stat().st_mode):
        raise NotRegularError(f"is {found}, not a file")


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading, without ever waiting for somebody to write."""
    refuse_irregular(path)
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return os.fdopen(number, "rb")
