"""A page at a time: the label part of each line is parsed once and from then on stands for a row."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from probes.exposition.line import (
    BOM,
    ExpositionError,
    Family,
    Metadata,
    parse_comment,
    parse_series,
    parse_time,
    parse_value,
    plain_series,
)
from probes.exposition.refuse import decode, refuse_foreign
from probes.labels import Labels

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_NO_LABELS = Labels.of()
_CLOCK_LINES = 1024
NO_TIME = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest page that is taken, in bytes and in series, and the longest name with labels, in bytes.

    Policy: a page of 16 engines has 0.6 MB and 8,000 series, and vLLM's longest labels 2 kB.
    """

    bytes: int = 64 << 20
    series: int = 50_000
    labels: int = 64 << 10


@dataclass(frozen=True, slots=True)
class Page:
    """The samples of one page: ``rows[i]`` has ``values[i]``, each row once (the first sample of a series wins).

    ``times`` holds explicit timestamps in ms, ``NO_TIME`` where a line has none, and is None when no line has one.
    ``rows`` is the same object as long as the page keeps its lines. ``duplicates`` counts the samples left out.
    """

    rows: IntArray
    values: FloatArray
    times: IntArray | None
    families: Mapping[str, Family]
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class _Layout:
    """A page seen before: every line up to its last space, and what the line stands for."""

    heads: tuple[bytes, ...]
    pick_values: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]
    pick_notes: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]
    notes: tuple[bytes, ...]
    rows: IntArray
    families: Mapping[str, Family]
    duplicates: int
    openmetrics: bool


@dataclass(slots=True)
class _Lines:
    """What the line-by-line pass collects; the first three run in step."""

    rows: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    notes: list[int] = field(default_factory=list)
    prefixes: list[bytes] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    duplicates: int = 0
    timed: bool = False
    plain: bool = True
    eof: bool = False


class PageParser:
    """Reads the pages of one target. ``resolve`` gives the row of a label set and is asked once per series.

    ``resolve_plain``, where given, does so from a dictionary that includes ``__name__`` (and that it may keep): who
    adds labels of his own spares the label set without them.
    """

    def __init__(
        self,
        resolve: Callable[[Labels], int],
        limits: Limits | None = None,
        resolve_plain: Callable[[dict[str, str]], int] | None = None,
    ) -> None:
        self._resolve = resolve
        self._resolve_plain = resolve_plain or (lambda found: resolve(Labels.of(found)))
        self._limits = limits or Limits()
        self._known: dict[bytes, int] = {}
        self._layout: _Layout | None = None

    def parse(self, data: bytes, *, openmetrics: bool = False, until: float = math.inf) -> Page:
        """Read one page; ``openmetrics`` (seconds, ``# EOF`` required) as the Content-Type says.

        ``until`` is a moment of ``time.monotonic``: what takes longer is given up (what was learnt of the page stays,
        so that the next attempt comes further). Raises ``ExpositionError`` for anything that is not a whole
        exposition; no sample of such a page counts.
        """
        if len(data) > self._limits.bytes:
            raise ExpositionError(f"the page has {len(data)} bytes, more than the limit of {self._limits.bytes}")
        lines = data.removeprefix(BOM).split(b"\n")
        heads, _, tails = zip(*[line.rpartition(b" ") for line in lines], strict=True)
        layout = self._layout
        if layout is not None and layout.openmetrics is openmetrics and heads == layout.heads:
            page = _by_layout(layout, tails)
            if page is not None:
                return page
        try:
            if lines[-1] and not (openmetrics and lines[-1].rstrip() == b"# EOF"):
                raise _cut(lines)
            return self._by_line(lines, heads, tails, openmetrics, until)
        except ExpositionError:
            refuse_foreign(data)
            raise

    def _by_line(
        self, lines: list[bytes], heads: tuple[bytes, ...], tails: tuple[bytes, ...], openmetrics: bool, until: float
    ) -> Page:
        got = _Lines()
        metadata = Metadata()
        scale = 1000.0 if openmetrics else 1.0
        for at, line in enumerate(lines):
            if at % _CLOCK_LINES == 0 and time.monotonic() > until:
                raise ExpositionError(f"no time left to read the page: line {at + 1} of {len(lines)}", 0, "timeout")
            if line[:1] == b"#":
                got.notes.append(at)
                if parse_comment(decode(line, at + 1), metadata, at + 1) and openmetrics:
                    got.eof = True
                    if any(rest.strip() for rest in lines[at + 1 :]):
                        raise ExpositionError("text after # EOF", at + 2)
                    break
            elif line and not line.isspace():
                self._take(line, at, scale, got)
        if openmetrics and not got.eof:
            raise ExpositionError("an OpenMetrics page that does not end with # EOF: cut off", len(lines), "truncated")
        rows = np.array(got.rows, dtype=np.int64)
        self._layout = None
        if got.plain and not got.timed and got.at:
            self._layout = _layout(heads, tails, got, rows, metadata.families, openmetrics)
        if len(self._known) > 2 * len(got.prefixes) + 1000:
            self._known = {prefix: self._known[prefix] for prefix in got.prefixes}
        times = np.array(got.times, dtype=np.int64) if got.timed else None
        return Page(rows, np.array(got.values), times, metadata.families, got.duplicates)

    def _take(self, line: bytes, at: int, scale: float, got: _Lines) -> None:
        prefix, rest = split_series(line)
        row = self._known.get(prefix)
        if row is None:
            prefix, rest, row = self._first_seen(line, prefix, rest, at)
        words = rest.split(b"#", 1)[0].split()
        if not words or len(words) > 2 or (rest[:1] not in (b" ", b"\t") and prefix[-1:] != b"}"):
            found = decode(rest, at + 1)[:40]
            raise ExpositionError(f"expected a value after {decode(prefix, at + 1)[:60]!r}, found {found!r}", at + 1)
        value = parse_value(words[0].decode("utf-8", "replace"), at + 1)
        moment = NO_TIME
        if len(words) == 2:
            moment = round(parse_time(words[1].decode("utf-8", "replace"), at + 1, scale=scale) * scale)
            got.timed = True
        if row in got.seen:
            got.duplicates += 1
            return
        if len(got.seen) >= self._limits.series:
            most = f"{self._limits.series:,}"
            raise ExpositionError(f"the page has more than {most} series; an engine's has a few thousand", at + 1)
        got.seen.add(row)
        got.rows.append(row)
        got.values.append(value)
        got.times.append(moment)
        got.at.append(at)
        got.prefixes.append(prefix)
        got.plain = got.plain and line.removesuffix(b"\r") == prefix + b" " + words[0]

    def _first_seen(self, line: bytes, prefix: bytes, rest: bytes, at: int) -> tuple[bytes, bytes, int]:
        """Label part, rest and row of a line whose label part, as far as it was guessed, is not known."""
        plain, labels = plain_series(prefix.decode("ascii")) if prefix.isascii() else None, _NO_LABELS
        if plain is None:
            labels, end = parse_series(decode(line, at + 1), at + 1)
            prefix, rest = line[: len(line.decode()[:end].encode())], line.decode()[end:].encode()
            row = self._known.get(prefix)
            if row is not None:
                return prefix, rest, row
        if len(prefix) > self._limits.labels:
            raise ExpositionError(f"a name with labels of {len(prefix)} bytes", at + 1)
        if len(self._known) > 3 * self._limits.series:  # pages that are all new, and all refused
            self._known.clear()
        row = self._known[prefix] = self._resolve_plain(plain) if plain is not None else self._resolve(labels)
        return prefix, rest, row


def split_series(line: bytes) -> tuple[bytes, bytes]:
    """Cut a sample line behind its label part, by the last brace: a guess that a cache look-up then confirms."""
    if b"#" in line and b" # " in line:
        line_end = line.index(b" # ")
        end = line.rfind(b"}", 0, line_end) + 1
    else:
        end = line.rfind(b"}") + 1
    if not end:
        head = line.split(None, 1)
        end = line.index(head[0]) + len(head[0])
    return line[:end], line[end:]


def _by_layout(layout: _Layout, tails: tuple[bytes, ...]) -> Page | None:
    """The page by position alone; None when a comment changed or a value is not a plain number."""
    if layout.pick_notes(tails) != layout.notes:
        return None
    picked = layout.pick_values(tails)
    try:
        values = np.fromiter(map(float, picked), dtype=np.float64, count=len(picked))
    except ValueError:
        return None
    if b"_" in b" ".join(picked):
        return None
    return Page(layout.rows, values, None, layout.families, layout.duplicates)


def _layout(
    heads: tuple[bytes, ...],
    tails: tuple[bytes, ...],
    got: _Lines,
    rows: IntArray,
    families: Mapping[str, Family],
    openmetrics: bool,
) -> _Layout:
    notes = _picker(got.notes)
    return _Layout(heads, _picker(got.at), notes, notes(tails), rows, families, got.duplicates, openmetrics)


def _picker(at: list[int]) -> Callable[[tuple[bytes, ...]], tuple[bytes, ...]]:
    if len(at) >= 2:
        return itemgetter(*at)
    return lambda tails: tuple(tails[i] for i in at)


def _cut(lines: list[bytes]) -> ExpositionError:
    """The last line has no line feed, which the text format requires: the page was cut, most likely within it."""
    return ExpositionError(
        f"the page ends within a line ({lines[-1][:40].decode('utf-8', 'replace')!r}): cut off, or no final line feed",
        len(lines),
        "truncated",
    )
