"""A streamed recording put into OpenMetrics order, in memory that grows with its series and not with its length.

Two passes over the file: the first adds up how many bytes each series has, which gives every series its place in the
result; the second copies each line to its place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from probes.exposition import ExpositionError, Metadata, parse_comment, parse_sample
from probes.exposition.line import parse_series
from probes.exposition.refuse import decode, refuse_foreign
from probes.openmetrics import FamilyNames, type_line
from probes.series import Metadata as Declared

_BUFFERED = 8 << 20
_EOF = b"# EOF\n"


@dataclass(slots=True)
class _Place:
    """One series of the file: its bytes, where its next line goes, and the lines that wait to be written."""

    name: str
    key: bytes
    size: int = 0
    at: int = 0
    waiting: list[bytes] = field(default_factory=list)


def reorder(path: Path) -> int:
    """Rewrite ``path`` with the samples of each family, and in it of each series, together; counts the samples.

    The result is written beside the file and then takes its place. A cut last line is left out. Raises ``OSError``,
    and ``ExpositionError`` for a line that is wrong.
    """
    places: dict[bytes, _Place] = {}
    metadata = Metadata()
    samples = 0
    try:
        for number, line in _lines(path):
            if line[:1] == b"#":
                parse_comment(decode(line, number), metadata, number)
            elif line and not line.isspace():
                _check(line, number, places)
                _place(line, number, places).size += len(line) + 1
                samples += 1
    except ExpositionError:
        with path.open("rb") as file:
            refuse_foreign(file.read(4096))
        raise
    made = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    out = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, path.stat().st_mode & 0o777)
    try:
        _write(path, out, places, metadata)
        os.fsync(out)
        os.replace(made, path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    finally:
        os.close(out)
    return samples


def _write(path: Path, out: int, places: dict[bytes, _Place], metadata: Metadata) -> None:
    declared = {
        name: Declared("unknown" if family.type == "untyped" else family.type)
        for name, family in metadata.families.items()
    }
    names = FamilyNames(declared.get)
    at = 0
    open_family = ""
    for place in sorted(places.values(), key=lambda one: (names.family(one.name).name, one.name, one.key)):
        family = names.family(place.name)
        if family.name != open_family:
            open_family = family.name
            at += os.pwrite(out, type_line(family), at)
        place.at = at
        at += place.size
    waiting = 0
    for number, line in _lines(path):
        if line[:1] == b"#" or not line or line.isspace():
            continue
        place = _place(line, number, places)
        place.waiting.append(line)
        waiting += len(line) + 1
        if waiting > _BUFFERED:
            _flush(out, places)
            waiting = 0
    _flush(out, places)
    os.pwrite(out, _EOF, at)


def _flush(out: int, places: dict[bytes, _Place]) -> None:
    for place in places.values():
        if place.waiting:
            data = b"\n".join(place.waiting) + b"\n"
            place.waiting.clear()
            while data:
                done = os.pwrite(out, data, place.at)
                place.at += done
                data = data[done:]


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Whole lines with their numbers, up to ``# EOF``; what stands behind the last line feed is left out."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n") or line == _EOF:
                return
            yield number, line.rstrip(b"\r\n")


def _place(line: bytes, number: int, places: dict[bytes, _Place]) -> _Place:
    """The series that a line belongs to, by the text before value and time; an exemplar takes the slow way."""
    key = line.rsplit(b" ", 2)[0]
    found = places.get(key)
    if found is None:
        text = decode(line, number)
        labels, end = parse_series(text, number)
        key = text[:end].encode()
        found = places.get(key)
        if found is None:
            found = places[key] = _Place(labels.name, key)
    return found


def _check(line: bytes, number: int, places: dict[bytes, _Place]) -> None:
    """A sample must have a time; the common form of a known series is checked cheaply."""
    parts = line.rsplit(b" ", 2)
    if len(parts) == 3 and parts[0] in places:
        try:
            float(parts[1]), float(parts[2])
        except ValueError:
            pass
        else:
            return
    if parse_sample(decode(line, number), number).time is None:
        raise ExpositionError("a sample without a timestamp: this is a page, not a recording", number)
