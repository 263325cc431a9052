"""Standard output that says of itself when it cannot be written: a full disk is no fault of what was asked."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class OutputError(Exception):
    """Standard output cannot be written; the message says why. No `OSError`: no command takes it for one of its own."""


class _Watched:
    """A stream whose failed writes raise `OutputError`; a reader that has gone stays `BrokenPipeError`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with _watch():
            return self._stream.write(text)

    def flush(self) -> None:
        with _watch():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Within it, `sys.stdout` is watched; at its end, what was printed is seen off."""
    if sys.stdout is None:  # closed from the start: nobody wanted it
        yield
        return
    with contextlib.redirect_stdout(_Watched(sys.stdout)):
        try:
            yield
        finally:
            sys.stdout.flush()


def discard() -> None:
    """Nothing more is written: Python would otherwise try again, and complain, when it flushes at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


@contextlib.contextmanager
def _watch() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError((error.strerror or str(error)).lower()) from None
