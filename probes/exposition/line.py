"""One line of an exposition, read in full: the slow and careful way, taken once per series."""

from __future__ import annotations

import re
from dataclasses import field

from probes.labels import NAME, Labels
from probes.printable import one_line
from probes.records import dataclass

METRIC_TYPES = frozenset(
    ["counter", "gauge", "histogram", "summary", "untyped", "unknown", "info", "stateset", "gaugehistogram"]
)

_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_PAIR = re.compile(rf"[ \t]*(?:([a-zA-Z_][a-zA-Z0-9_]*)|{_QUOTED})[ \t]*(?:(=)[ \t]*{_QUOTED}[ \t]*)?(,|\}})")
_PLAIN_PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="([^"\\]*)"(?:,|$)')
_CLOSE = re.compile(r"[ \t]*\}")
_ESCAPE = re.compile(r'\\([\\n"])')
_UNESCAPED = {"n": "\n", "\\": "\\", '"': '"'}
_SHOWN = 60
LAST_MS = 253_402_300_799_999
"""The last moment of the year 9999, in ms."""
BOM = b"\xef\xbb\xbf"
"""UTF-8's byte order mark, which some editors put before a text: passed over."""


class ExpositionError(ValueError):
    """A page that is no exposition, or a line in it that is wrong.

    ``kind`` is the state that a source reports for it (``not-exposition``, ``truncated`` or ``timeout``); ``line``
    counts from 1 and is 0 where the page as a whole is meant.
    """

    def __init__(self, message: str, line: int = 0, kind: str = "not-exposition") -> None:
        message = one_line(message)
        super().__init__(f"line {line}: {message}" if line else message)
        self.message = message
        self.line = line
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Family:
    """What ``# TYPE``, ``# HELP`` and ``# UNIT`` say of one metric family; ``untyped`` where there is no TYPE."""

    name: str
    type: str = "untyped"
    help: str = ""
    unit: str = ""


@dataclass(slots=True)
class Metadata:
    """The families of a page by name, filled line by line."""

    families: dict[str, Family] = field(default_factory=dict)

    def set(self, name: str, *, kind: str | None = None, text: str | None = None, unit: str | None = None) -> None:
        old = self.families.get(name, Family(name))
        self.families[name] = Family(
            name,
            old.type if kind is None else kind,
            old.help if text is None else text,
            old.unit if unit is None else unit,
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample line: ``time`` is the number as written (ms in classic text, seconds in OpenMetrics) or None."""

    labels: Labels
    value: float
    time: str | None = None


def shown(text: str) -> str:
    """A quotation short enough for one line of an error message."""
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def parse_comment(line: str, metadata: Metadata, number: int = 0) -> bool:
    """Take in a line that starts with ``#``; True for ``# EOF``. A comment of another kind says nothing."""
    words = line.split(None, 3)
    if len(words) < 2 or words[0] != "#":
        return False
    if words[1] == "EOF" and len(words) == 2:
        return True
    if words[1] not in ("TYPE", "HELP", "UNIT") or len(words) < 3:
        return False
    name = words[2]
    if len(name) > 1 and name[0] == name[-1] == '"':
        name = unescape(name[1:-1])
    rest = words[3] if len(words) > 3 else ""
    if words[1] == "HELP":
        metadata.set(name, text=unescape(rest))
    elif words[1] == "UNIT":
        metadata.set(name, unit=rest.strip())
    else:
        kind = rest.strip().lower()
        if kind not in METRIC_TYPES:
            raise ExpositionError(f"unknown metric type {shown(rest.strip())} for {name}", number)
        metadata.set(name, kind=kind)
    return False


def parse_sample(line: str, number: int = 0) -> Sample:
    """Read a sample line whole; an OpenMetrics exemplar behind it is passed over."""
    labels, end = parse_series(line, number)
    rest = line[end:]
    if rest and rest[0] not in " \t" and line[end - 1] != "}":
        raise ExpositionError(f"unexpected {shown(rest)} after the metric name", number)
    words = rest.split("#", 1)[0].split()
    if not words:
        raise ExpositionError(f"no value after {shown(line[:end])}", number)
    if len(words) > 2:
        raise ExpositionError(f"unexpected {shown(words[2])} after the timestamp", number)
    return Sample(labels, parse_value(words[0], number), words[1] if len(words) == 2 else None)


def parse_series(line: str, number: int = 0) -> tuple[Labels, int]:
    """The label set that a line starts with, and where it ends."""
    found = _METRIC.match(line)
    name = found.group() if found else ""
    at = found.end() if found else 0
    while line[at : at + 1] in (" ", "\t"):
        at += 1
    if line[at : at + 1] != "{":
        if not found:
            raise ExpositionError(f"{shown(line)} does not start with a metric name", number)
        return Labels.of({}, name=name), found.end()
    pairs, end = _parse_pairs(line, at + 1, number)
    quoted = pairs.pop("", "")
    if bool(name) == bool(quoted):
        raise ExpositionError(f"{shown(line)} has {'two metric names' if name else 'no metric name'}", number)
    return Labels.of(pairs, name=name or quoted), end


def plain_name(text: bytes) -> str:
    """A metric name; empty where it is none, or none without quotes."""
    name = text.decode("ascii") if text.isascii() else ""
    return name if _METRIC.fullmatch(name) else ""


def plain_labels(braced: bytes) -> dict[str, str] | None:
    """The labels in what follows an opening brace, written as nearly all are: four times as fast.

    None for anything else (spaces, escapes, quoted names, faults), which ``parse_series`` reads or refuses.
    """
    if braced[-1:] != b"}" or not braced.isascii():
        return None
    inside = braced[:-1].decode("ascii")
    pairs = _PLAIN_PAIR.findall(inside)
    found = dict(pairs)
    read = sum(map(len, found)) + sum(map(len, found.values())) + 4 * len(pairs) - (inside[-1:] == '"')
    if len(found) != len(pairs) or read != len(inside) or NAME in found:
        return None
    return found


def _parse_pairs(line: str, at: int, number: int) -> tuple[dict[str, str], int]:
    """Label pairs from behind the opening brace; a quoted metric name comes back under the empty label name."""
    pairs: dict[str, str] = {}
    while True:
        closed = _CLOSE.match(line, at)
        if closed:
            return pairs, closed.end()
        found = _PAIR.match(line, at)
        if not found:
            raise ExpositionError(f"broken label at {shown(line[at:])}", number)
        plain, quoted, equals, value, closing = found.groups()
        key = plain if plain is not None else unescape(quoted)
        if equals is None:
            if plain is not None:
                raise ExpositionError(f"label {plain} has no value", number)
            key, value = "", key
        else:
            value = unescape(value)
        if key in pairs or key == NAME:
            raise ExpositionError(f"label {shown(key)} is given twice", number)
        pairs[key] = value
        at = found.end()
        if closing == "}":
            return pairs, at


def parse_value(text: str, number: int = 0) -> float:
    """A float as Prometheus writes it: decimal, ``+Inf``, ``-Inf`` or ``NaN``."""
    try:
        if "_" in text:
            raise ValueError(text)
        return float(text)
    except ValueError:
        raise ExpositionError(f"{shown(text)} is not a number", number) from None


def parse_time(text: str, number: int = 0, *, scale: float = 1.0) -> float:
    """A timestamp as written, in a unit of ``scale`` ms; an error for what is no moment before the year 10000."""
    try:
        time = parse_value(text)
    except ExpositionError:
        raise ExpositionError(f"{shown(text)} is not a timestamp", number) from None
    if not abs(time * scale) <= LAST_MS:
        raise ExpositionError(f"timestamp {shown(text)} is not a time before the year 10000", number)
    return time


def unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: _UNESCAPED[found.group(1)], text)
