"""A page at a time: the label part of each line is parsed once and from then on stands for a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field

import numpy as np

from probes.exposition.common import CommonParts, Dress
from probes.exposition.layout import FloatArray, IntArray, Layout, Texts, numbers, picker
from probes.exposition.line import (
    BOM,
    ExpositionError,
    Family,
    Metadata,
    parse_comment,
    parse_series,
    parse_time,
    parse_value,
)
from probes.exposition.news import CLOCK_LINES, News, check_clock
from probes.exposition.refuse import decode, refuse_foreign
from probes.labels import Labels
from probes.records import dataclass

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


@dataclass(slots=True)
class _Lines:
    """What the line-by-line pass collects; the first three run in step."""

    common: CommonParts
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

    ``dress``, where given, makes the label set (less the metric name) of what stands in a line's braces: who adds
    labels of his own does so once for all the names that have them in common.
    """

    def __init__(
        self, resolve: Callable[[Labels], int], limits: Limits | None = None, dress: Dress = Labels.of
    ) -> None:
        self._resolve = resolve
        self._dress = dress
        self._limits = limits or Limits()
        self._known: dict[bytes, int] = {}
        self._layout: Layout | None = None

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
            values = layout.values(tails)
            if values is not None:
                return Page(layout.rows, values, None, layout.families, layout.duplicates)
        try:
            if lines[-1] and not (openmetrics and lines[-1].rstrip() == b"# EOF"):
                raise _cut(lines)
            page = self._by_head(lines, heads, tails, openmetrics, until)
            return self._by_line(lines, heads, tails, openmetrics, until) if page is None else page
        except ExpositionError:
            refuse_foreign(data)
            raise

    def _by_head(self, lines: list[bytes], heads: Texts, tails: Texts, openmetrics: bool, until: float) -> Page | None:
        """A page of nothing but comments and plain samples, each series once; only what is new is looked at.

        None for any other: ``_by_line`` reads it, or says what is wrong.
        """
        if len(lines) > self._limits.series or max(map(len, heads)) > self._limits.labels:
            return None
        found = list(map(self._known.get, heads))
        unknown = [at for at, row in enumerate(found) if row is None]
        news = News()
        try:
            plain = news.read(lines, heads, unknown, CommonParts(self._dress), openmetrics=openmetrics, until=until)
        finally:
            self._bound()
            for at, row in zip(news.places, map(self._resolve, news.labels), strict=True):
                found[at] = self._known[heads[at]] = row
        rows = [row for row in found if row is not None]
        if not plain or len(set(rows)) < len(rows):
            return None
        places = [at for at, row in enumerate(found) if row is not None]
        values = numbers(picker(places)(tails))
        if values is None:
            return None
        page = Page(np.array(rows, dtype=np.int64), values, None, news.families)
        self._settle(page, heads, tails, places, news.notes, openmetrics)
        return page

    def _by_line(self, lines: list[bytes], heads: Texts, tails: Texts, openmetrics: bool, until: float) -> Page:
        got = _Lines(CommonParts(self._dress))
        metadata = Metadata()
        scale = 1000.0 if openmetrics else 1.0
        for at, line in enumerate(lines):
            if at % CLOCK_LINES == 0:
                check_clock(until, at, lines)
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
        times = np.array(got.times, dtype=np.int64) if got.timed else None
        rows = np.array(got.rows, dtype=np.int64)
        page = Page(rows, np.array(got.values), times, metadata.families, got.duplicates)
        if got.plain and not got.timed:
            self._settle(page, heads, tails, got.at, got.notes, openmetrics)
        else:
            self._layout = None
            self._keep(got.prefixes)
        return page

    def _settle(
        self, page: Page, heads: Texts, tails: Texts, places: list[int], notes: list[int], openmetrics: bool
    ) -> None:
        """Remember the lines of a page whose samples, one a row, stand at ``places``."""
        self._keep([heads[at] for at in places])
        self._layout = None
        if places:
            self._layout = Layout.of(
                heads, tails, places, notes, page.rows, page.families, page.duplicates, openmetrics
            )

    def _take(self, line: bytes, at: int, scale: float, got: _Lines) -> None:
        prefix, rest = split_series(line)
        row = self._known.get(prefix)
        if row is None:
            prefix, rest, row = self._first_seen(line, prefix, rest, at, got.common)
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

    def _first_seen(
        self, line: bytes, prefix: bytes, rest: bytes, at: int, common: CommonParts
    ) -> tuple[bytes, bytes, int]:
        """Label part, rest and row of a line whose label part, as far as it was guessed, is not known."""
        labels = common.labels(prefix)
        if labels is None:
            read, end = parse_series(decode(line, at + 1), at + 1)
            prefix, rest = line[: len(line.decode()[:end].encode())], line.decode()[end:].encode()
            row = self._known.get(prefix)
            if row is not None:
                return prefix, rest, row
            labels = self._dress(read.unnamed().as_dict()).named(read.name)
        if len(prefix) > self._limits.labels:
            raise ExpositionError(f"a name with labels of {len(prefix)} bytes", at + 1)
        return prefix, rest, self._learn(prefix, labels)

    def _learn(self, prefix: bytes, labels: Labels) -> int:
        self._bound()
        row = self._known[prefix] = self._resolve(labels)
        return row

    def _bound(self) -> None:
        if len(self._known) > 3 * self._limits.series:  # pages that are all new, and all refused
            self._known.clear()

    def _keep(self, prefixes: list[bytes]) -> None:
        """Forget what a page does not name, where that is much."""
        if len(self._known) > 2 * len(prefixes) + 1000:
            self._known = {prefix: self._known[prefix] for prefix in prefixes}


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


def _cut(lines: list[bytes]) -> ExpositionError:
    """The last line has no line feed, which the text format requires: the page was cut, most likely within it."""
    return ExpositionError(
        f"the page ends within a line ({lines[-1][:40].decode('utf-8', 'replace')!r}): cut off, or no final line feed",
        len(lines),
        "truncated",
    )
