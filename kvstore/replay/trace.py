"""Reader of request traces in Mooncake's format: one JSON object a line.

`{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [id, …]}`. An id stands for 512 tokens
*and all before them* (a prefix-chain hash, renumbered), so that an id always stands at the same place of a prompt. The
last id of a prompt may be filled in part.
"""

from __future__ import annotations

import gzip
import io
import json
import stat
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

WINDOW_TOKENS = 512
"""Tokens of one hash id (Mooncake's trace description)."""

EXCERPT = "conversation_excerpt.jsonl.gz"

LONGEST_LINE = 4 << 20
"""Bytes of a line that are read: 200,000 windows, a prompt of 100 million tokens (policy)."""

_MOST = 2**62


class TraceError(ValueError):
    """A trace that cannot be read; the message names file and line and says what is wrong."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: `windows` `[n]` int64 hash ids of its prompt, in order."""

    timestamp_ms: int
    input_tokens: int
    output_tokens: int
    windows: npt.NDArray[np.int64]

    def valid(self) -> npt.NDArray[np.int64]:
        """Tokens that each window holds `[n]`: 512, and what is left in the last."""
        before = np.arange(len(self.windows), dtype=np.int64) * WINDOW_TOKENS
        return np.clip(self.input_tokens - before, 1, WINDOW_TOKENS)


def excerpt() -> Path:
    """The excerpt that ships with the package: the first minutes of Mooncake's conversation trace."""
    return Path(str(resources.files("kvstore.replay") / "data" / EXCERPT))


def read_trace(path: Path, *, limit: int | None = None) -> list[Request]:
    """The first `limit` requests of `path` (`.gz`: compressed), in the file's order. Raises `TraceError`: also for what
    is no regular file (a device never ends, a pipe may never begin) and for lines beyond `LONGEST_LINE`."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            kind = "a directory" if path.is_dir() else "no regular file"
            raise TraceError(f"{path}: cannot be read: {kind}; a trace is a file of lines (.gz: compressed)")
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            requests = list(_parse(_lines(file, str(path)), str(path), limit))
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TraceError(f"{path}: cannot be read: {reason}") from None
    if not requests:
        raise TraceError(f"{path}: no request in it")
    return requests


def _lines(file: io.BufferedIOBase, name: str) -> Iterator[bytes]:
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise TraceError(f"{name}:{number}: a line of more than {LONGEST_LINE >> 20} MiB is no request")
        yield line


def _parse(lines: Iterable[bytes], name: str, limit: int | None) -> Iterator[Request]:
    places: dict[int, tuple[int, int]] = {}
    count = 0
    for number, line in enumerate(lines, 1):
        if count == limit:
            return
        if not line.strip():
            continue
        where = f"{name}:{number}"
        request = _request(line, where)
        for place, window in enumerate(request.windows.tolist()):
            known, first = places.setdefault(window, (place, number))
            if known != place:
                raise TraceError(
                    f"{where}: hash id {window} stands at place {place} here and at place {known} in line {first}; "
                    "ids must be prefix-chain hashes, which always stand at the same place"
                )
        count += 1
        yield request


def _request(line: bytes, where: str) -> Request:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise TraceError(f"{where}: a request must be a JSON object, not {_kind(values)}")
    ids = values.get("hash_ids")
    if not isinstance(ids, list) or not ids:
        raise TraceError(f"{where}: 'hash_ids' must be a list of integers, at least one, not {_kind(ids)}")
    for window in ids:
        if type(window) is not int or not 0 <= window < _MOST:
            raise TraceError(f"{where}: a hash id must be a non-negative integer, not {_kind(window)}")
    timestamp, inputs, outputs = (
        _count(values, name, where) for name in ("timestamp", "input_length", "output_length")
    )
    if -(-inputs // WINDOW_TOKENS) != len(ids):
        raise TraceError(
            f"{where}: {inputs} input tokens are {-(-inputs // WINDOW_TOKENS)} windows of {WINDOW_TOKENS}, but there "
            f"are {len(ids)} hash ids"
        )
    return Request(timestamp, inputs, outputs, np.asarray(ids, np.int64))


def _count(values: dict[str, Any], name: str, where: str) -> int:
    value = values.get(name)
    if type(value) is not int or not 0 <= value < _MOST:
        raise TraceError(f"{where}: {name!r} must be a non-negative integer, not {_kind(value)}")
    return value


def _kind(value: object) -> str:
    """A value for an error message, never longer than a few words."""
    if value is None:
        return "missing or null"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
