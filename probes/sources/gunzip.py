"""Gzip data that may end early or be damaged: everything before the fault, and the fault in words."""

from __future__ import annotations

import zlib
from typing import IO

_READ = 4096  # small, so that little is lost with the piece that is at fault


class Gunzip:
    """``read`` as of a file, decompressed; after the end ``fault`` says what is wrong, or is empty."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._inflate = zlib.decompressobj(wbits=31)
        self._waiting = b""
        self._begun = False
        self._ended = False
        self.fault = ""

    def read(self, size: int) -> bytes:
        """At least one byte and at most about ``size``; nothing at the end or at a fault."""
        parts: list[bytes] = []
        got = 0
        while got < size and not self._ended:
            part = self._next(size - got)
            parts.append(part)
            got += len(part)
        return b"".join(parts)

    def drain(self) -> bool:
        """Read on to the end; whether there is a fault."""
        while self.read(1 << 20):
            pass
        return bool(self.fault)

    def _next(self, size: int) -> bytes:
        data = self._waiting or self._raw.read(_READ)
        self._waiting = b""
        if not data:
            self._ended = True
            if self._begun:
                self.fault = "its compressed data ends early"
            return b""
        if not self._begun and not data.strip(b"\0"):
            return b""  # padding behind a member
        self._begun = True
        try:
            made = self._inflate.decompress(data, size)
        except zlib.error:
            self._ended = True
            self.fault = "its compressed data is damaged"
            return b""
        self._waiting = self._inflate.unconsumed_tail
        if self._inflate.eof:  # another member may follow
            self._waiting = self._inflate.unused_data
            self._inflate = zlib.decompressobj(wbits=31)
            self._begun = False
        return made
