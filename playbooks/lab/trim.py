"""Cut a recording: by family, by time, by target. What is left is a recording again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

_INSTANCE = re.compile(r'[{,]instance="((?:[^"\\]|\\.)*)"')


def families(text: str) -> Iterator[tuple[str, list[str]]]:
    """(family name, its lines with ``# TYPE`` and all) of an OpenMetrics text, in order."""
    name = ""
    lines: list[str] = []
    for line in text.splitlines():
        if line == "# EOF":
            break
        if line.startswith("# ") and line.split(" ", 3)[2] != name:
            if lines:
                yield name, lines
            name, lines = line.split(" ", 3)[2], []
        lines.append(line)
    if lines:
        yield name, lines


def trim(
    text: str,
    keep: Iterable[str] | None = None,
    drop: Iterable[str] = (),
    start_s: float | None = None,
    end_s: float | None = None,
    without: Sequence[str] = (),
) -> str:
    """The recording with less in it.

    ``keep`` and ``drop`` are family names or shell patterns (``vllm:nixl_*``); a counter answers to its name with or
    without ``_total``. ``start_s`` and ``end_s`` are seconds from the first sample, both included. ``without`` lists
    instances to leave out. A family without samples goes too.
    """
    wanted = None if keep is None else tuple(keep)
    unwanted = tuple(drop)
    first = min((_time(line) for _name, lines in families(text) for line in lines if line[0] != "#"), default=0.0)
    low = float("-inf") if start_s is None else first + start_s
    high = float("inf") if end_s is None else first + end_s
    kept: list[str] = []
    for name, lines in families(text):
        if _matches(name, unwanted) or (wanted is not None and not _matches(name, wanted)):
            continue
        samples = [line for line in lines if line[0] != "#" and low <= _time(line) <= high and not _of(line, without)]
        if samples:
            kept += [line for line in lines if line[0] == "#"] + samples
    return "\n".join([*kept, "# EOF\n"])


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) or fnmatchcase(name + "_total", pattern) for pattern in patterns)


def _of(line: str, instances: Sequence[str]) -> bool:
    if not instances:
        return False
    found = _INSTANCE.search(line)
    return found is not None and found[1] in instances


def _time(line: str) -> float:
    return float(line.rsplit(" ", 1)[1])
