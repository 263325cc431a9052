"""A streamed recording put into OpenMetrics order, in memory that grows with its series and not with its length.

Two passes over the file: the first adds up how many bytes each series has, which gives every series its place in the
result; the second copies each line to its place.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from probes.exposition import ExpositionError, Metadata, parse_comment, parse_sample
from probes.exposition.line import BOM, parse_series, parse_time
from probes.exposition.refuse import decode, refuse_foreign
from probes.openmetrics import FamilyNames, type_line
from probes.regular import open_regular
from probes.series import Metadata as Declared

_BUFFERED = 8 << 20
_EOF = b"# EOF\n"
_OVERLAP = (
    "two recordings one behind the other that overlap in time, or stand in the wrong order: "
    "take them apart (at the first # EOF) and name both to kvtop"
)


@dataclass(slots=True)
class _Place:
    """One series of the file: its bytes, where its next line goes, and the lines that wait to be written."""

    name: str
    key: bytes
    size: int = 0
    at: int = 0
    newest: float | None = None
    waiting: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Mended:
    """What a mended file holds: its samples, and how many recordings stood one behind the other before."""

    samples: int
    parts: int


def reorder(path: Path) -> Mended:
    """Rewrite ``path`` with the samples of each family, and in it of each series, together.

    The result is written beside the file and then takes its place. A cut last line is left out. A file that is closed
    and in order stays byte for byte. Several recordings one behind the other become one. Raises ``OSError``, and
    ``ExpositionError`` for a line that is wrong, or where such recordings overlap in time.
    """
    places: dict[bytes, _Place] = {}
    metadata = Metadata()
    _refuse_packed(path)
    try:
        mended, in_order = _measure(path, places, metadata)
    except ExpositionError:
        with open_regular(path) as file:
            refuse_foreign(file.read(4096), "file")
        raise
    if in_order and _families_together(places, metadata):
        return mended
    made = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    out = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, path.stat().st_mode & 0o666)
    try:
        _write(path, out, places, metadata)
        os.fsync(out)
        if filecmp.cmp(made, path, shallow=False):
            made.unlink()
        else:
            os.replace(made, path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    finally:
        os.close(out)
    return mended


def _refuse_packed(path: Path) -> None:
    with open_regular(path) as file:
        if file.read(2) == b"\x1f\x8b":
            raise ExpositionError("the file is compressed; unpack it first (gunzip), then mend what comes out")


def _measure(path: Path, places: dict[bytes, _Place], metadata: Metadata) -> tuple[Mended, bool]:
    """Fill ``places`` with the bytes of each series; also what there is, and whether the file is closed and
    has each series in one piece, with nothing in it that OpenMetrics does not know."""
    samples, parts = 0, 1
    current: _Place | None = None
    in_order = _is_closed(path)
    ended = False
    for number, line in _lines(path):
        if ended and line and not line.isspace():
            ended, in_order, parts = False, False, parts + 1
        if line[:1] == b"#":
            ended = parse_comment(decode(line, number), metadata, number) or ended
            in_order = in_order and (ended or line[:7] in (b"# TYPE ", b"# HELP ", b"# UNIT "))
        elif line and not line.isspace():
            time = _check(line, number, places)
            place = _place(line, number, places)
            if parts > 1 and place.newest is not None and time <= place.newest:
                raise ExpositionError(_OVERLAP, number)
            place.newest = time
            in_order = in_order and (place is current or not place.size)
            current = place
            place.size += len(line) + 1
            samples += 1
        elif not ended:
            in_order = False
    return Mended(samples, parts), in_order


def _is_closed(path: Path) -> bool:
    with open_regular(path) as file:
        marked = file.read(len(BOM)) == BOM
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(_EOF) - 1))
        return file.read() in (_EOF, b"\n" + _EOF) and not marked


def _families_together(places: dict[bytes, _Place], metadata: Metadata) -> bool:
    """Whether the families, in the file's order, come each in one piece, declared as we would."""
    names = _names(metadata)
    order = [names.family(place.name).name for place in places.values()]
    changes = sum(a != b for a, b in pairwise(order)) + bool(order)
    return changes == len(set(order)) and set(order) <= set(metadata.families)


def _names(metadata: Metadata) -> FamilyNames:
    declared = {
        name: Declared("unknown" if family.type == "untyped" else family.type)
        for name, family in metadata.families.items()
    }
    return FamilyNames(declared.get)


def _write(path: Path, out: int, places: dict[bytes, _Place], metadata: Metadata) -> None:
    names = _names(metadata)
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
    """Whole lines with their numbers; what stands behind the last line feed is left out."""
    with open_regular(path) as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            if line.startswith(BOM):
                line = line.removeprefix(BOM)
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


def _check(line: bytes, number: int, places: dict[bytes, _Place]) -> float:
    """The time of a sample, which it must have; the common form of a known series is checked cheaply."""
    parts = line.rsplit(b" ", 2)
    if len(parts) == 3 and parts[0] in places:
        try:
            float(parts[1])
            return parse_time(parts[2].decode(), number)
        except ValueError:
            pass
    time = parse_sample(decode(line, number), number).time
    if time is None:
        raise ExpositionError("a sample without a timestamp: this is a page, not a recording", number)
    return parse_time(time, number)
