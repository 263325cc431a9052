"""Streaming reader of an OpenMetrics file with timestamps: samples as three flat arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from probes.columns import Floats, Times
from probes.exposition import ExpositionError, Family, Metadata, parse_comment, parse_sample
from probes.exposition.line import BOM, LAST_MS, parse_series, parse_time
from probes.exposition.refuse import decode, refuse_foreign
from probes.labels import Labels
from probes.regular import open_regular
from probes.sources.gunzip import Gunzip

_CHUNK = 1 << 20
_LONGEST_LINE = 1 << 20
_FIRST_MS = 1e11  # a timestamp beyond this is in milliseconds: in seconds it would be the year 5138


@dataclass(frozen=True, slots=True)
class Samples:
    """A file's samples in file order: sample i belongs to ``labels[series[i]]``; times in ms.

    ``closed`` says that the file ends with ``# EOF``; ``parts`` counts the recordings in it, one behind the other, each
    but the last ended by ``# EOF``; ``cut`` that its last line was incomplete (and left out);
    ``dropped`` counts the oldest samples left out to stay within the cap; ``damage`` says what is wrong with compressed
    data, of which the part before is here.
    """

    labels: list[Labels]
    series: Times
    times: Times
    values: Floats
    families: dict[str, Family]
    closed: bool
    cut: bool
    dropped: int
    bytes: int
    damage: str = ""
    parts: int = 1


def read_samples(path: Path, *, cap: int = 20_000_000) -> Samples:
    """Read a recording, keeping at most about ``cap`` samples (the newest; 24 bytes each).

    A page without any timestamp counts as one scrape at the file's modification time. Raises ``ExpositionError`` for a
    file that is no exposition, ``OSError`` where it cannot be read.
    """
    reader = _Reader(cap)
    damage = ""
    with open_regular(path) as raw:
        zipped = Gunzip(raw) if raw.peek(2)[:2] == b"\x1f\x8b" else None
        try:
            reader.read(zipped or raw)
        except ExpositionError:
            refuse_foreign(reader.start, "file")
            if zipped is None or not (zipped.drain() and reader.held):
                raise  # else damaged data came out as this line
        damage = zipped.fault if zipped else ""
    return reader.result(round(path.stat().st_mtime * 1000), damage)


class _Reader:
    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._known: dict[bytes, int] = {}
        self._ids: dict[Labels, int] = {}
        self._metadata = Metadata()
        self._chunks: list[tuple[Times, Floats, Floats]] = []
        self.held = 0
        self._oldest = -np.inf
        self._number = 0
        self._timeless = 0
        self.start = b""
        self.dropped = self.bytes = 0
        self.closed = self.cut = False
        self.parts = 1

    def read(self, file: IO[bytes] | Gunzip) -> None:
        for lines in self._lines(file):
            self._take(lines)

    def _lines(self, file: IO[bytes] | Gunzip) -> Iterator[list[bytes]]:
        """Whole lines, a chunk at a time; what is left behind the last line feed is the cut line."""
        rest = b""
        while True:
            chunk = file.read(_CHUNK)
            if not chunk:
                break
            if not self.bytes:
                chunk = chunk.removeprefix(BOM)
            self.bytes += len(chunk)
            lines = (rest + chunk).split(b"\n")
            self.start = self.start or chunk[:4096]
            rest = lines.pop()
            if len(rest) > _LONGEST_LINE:
                raise ExpositionError(f"a line of more than {_LONGEST_LINE} bytes", self._number + len(lines) + 1)
            yield lines
        if rest.strip():
            self._goes_on()
        if rest.rstrip() == b"# EOF":
            self.closed = True
        elif rest.strip():
            self.cut = True
            if not self._known and not self._ids:
                raise ExpositionError("no whole sample line: not a recording")

    def _take(self, lines: list[bytes]) -> None:
        ids: list[int] = []
        values: list[float] = []
        times: list[float] = []
        try:
            self._read_lines(lines, ids, values, times)
        finally:  # also where a line is wrong: of damaged data the part before counts
            self._keep(lines, np.array(ids, dtype=np.int64), np.array(times), np.array(values))
        self._number += len(lines)

    def _read_lines(self, lines: list[bytes], ids: list[int], values: list[float], times: list[float]) -> None:
        known = self._known
        if self.closed and any(line.strip() for line in lines):
            self._goes_on()
        for number, line in enumerate(lines, self._number + 1):
            parts = line.rsplit(b" ", 2)
            at = known.get(parts[0])
            if at is not None and len(parts) == 3 and b"_" not in parts[1]:
                try:
                    value, time = float(parts[1]), float(parts[2])
                except ValueError:
                    at = None
                else:
                    ids.append(at)
                    values.append(value)
                    times.append(time)
                    continue
            if line[:3] == BOM:
                line = line[3:]
                parts = line.rsplit(b" ", 2)
            if line[:1] == b"#":
                if parse_comment(decode(line, number), self._metadata, number):
                    self.closed = True
                    if any(more.strip() for more in lines[number - self._number :]):
                        self._goes_on()
            elif line and not line.isspace():
                at, value, time = self._whole(line, parts, number)
                ids.append(at)
                values.append(value)
                times.append(time)

    def _goes_on(self) -> None:
        """Something follows what ended: another recording, as ``cat`` puts it there."""
        self.parts += self.closed
        self.closed = False

    def _whole(self, line: bytes, parts: list[bytes], number: int) -> tuple[int, float, float]:
        sample = parse_sample(decode(line, number), number)
        at = self._ids.setdefault(sample.labels, len(self._ids))
        if sample.time is None:
            self._timeless += 1
            return at, sample.value, np.nan
        time = parse_time(sample.time, number)
        text = line.decode()
        if len(parts) == 3 and text[: parse_series(text)[1]].encode() == parts[0]:
            self._known[parts[0]] = at
        return at, sample.value, time

    def _check_times(self, lines: list[bytes], times: Floats) -> None:
        """The cheap way through a line looks at no timestamp: where one is out of range, find its line."""
        wrong = ~(np.abs(times) <= LAST_MS)
        if int(np.count_nonzero(wrong)) == self._timeless:
            return
        for number, line in enumerate(lines, self._number + 1):
            if line[:1] != b"#" and line and not line.isspace():
                parse_time(parse_sample(decode(line, number), number).time or "0", number)

    def _keep(self, lines: list[bytes], ids: Times, times: Floats, values: Floats) -> None:
        self._check_times(lines, times)
        self._timeless = 0
        new = ~(times < self._oldest)
        self.dropped += int(len(new) - np.count_nonzero(new))
        self._chunks.append((ids[new], times[new], values[new]))
        self.held += int(np.count_nonzero(new))
        if self.held > self._cap:
            self._halve()

    def _halve(self) -> None:
        """Drop the older half of the time that is held, and from now on whatever is older than that."""
        ids, times, values = self._joined()
        self._oldest = float(np.median(times))
        new = times > self._oldest
        if not new.any():
            new = times >= self._oldest
        self.dropped += int(len(new) - np.count_nonzero(new))
        self._chunks = [(ids[new], times[new], values[new])]
        self.held = int(np.count_nonzero(new))

    def _joined(self) -> tuple[Times, Floats, Floats]:
        if not self._chunks:
            return np.empty(0, np.int64), np.empty(0), np.empty(0)
        columns = tuple(zip(*self._chunks, strict=True))
        return np.concatenate(columns[0]), np.concatenate(columns[1]), np.concatenate(columns[2])

    def result(self, mtime_ms: int, damage: str) -> Samples:
        ids, times, values = self._joined()
        timeless = np.isnan(times)
        if timeless.all():
            stamps = np.full(len(times), mtime_ms, dtype=np.int64)
        elif timeless.any():
            raise ExpositionError("some samples have a timestamp and some have none")
        else:
            if (times > _FIRST_MS).any() and not (times > _FIRST_MS).all():
                raise ExpositionError("timestamps in seconds and timestamps in milliseconds are mixed")
            scale = 1.0 if times[0] > _FIRST_MS else 1000.0
            stamps = np.rint(times * scale).astype(np.int64)
        families = self._metadata.families
        held = list(self._ids), ids, stamps, values, families
        return Samples(*held, self.closed, self.cut, self.dropped, self.bytes, damage, self.parts)
