"""Durations and moments as a user types them: `1h30m` as in Prometheus; RFC 3339, Unix seconds, `-5m` from the end."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime

from probes.records import dataclass

_UNIT_MS = {"y": 31_536_000_000, "w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
# Prometheus' own order, largest first, each unit at most once.
_DURATION = re.compile(r"(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")
_FRACTION = re.compile(r"(\d+\.\d+)(ms|[smhdwy])")
_NUMBER = re.compile(r"\d+(\.\d*)?|\.\d+")
_LONGEST_Y = 200
_LONGEST_MS = _LONGEST_Y * _UNIT_MS["y"]
_LAST_MS = 253_402_300_799_000  # 9999-12-31T23:59:59Z, the last moment that has a date of four digits


def duration_ms(text: str) -> int:
    """Milliseconds of ``30s``, ``1h30m``, ``1.5s``, or of a plain number of seconds. ``ValueError`` if it is neither,
    or zero."""
    if _NUMBER.fullmatch(text):
        total = _ms(float(text) * 1000)
    elif fraction := _FRACTION.fullmatch(text):
        total = _ms(float(fraction[1]) * _UNIT_MS[fraction[2]])
    else:
        match = _DURATION.fullmatch(text)
        if match is None or not text:
            raise ValueError(f"{text!r} is no duration: write 30s, 10m or 1h30m")
        total = sum(int(n) * ms for n, ms in zip(match.groups(), _UNIT_MS.values(), strict=True) if n)
    if total <= 0:
        raise ValueError(f"{text!r} is no duration: it must be longer than nothing")
    if total > _LONGEST_MS:
        raise ValueError(f"{_shown(text)} is no duration that can be meant: at most {_LONGEST_Y} years")
    return total


def _ms(value: float) -> int:
    return round(min(value, _LONGEST_MS + 1.0))  # what overflows is too long in any case


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")


def duration_text(ms: int) -> str:
    """Prometheus' way to write a duration: ``90s`` is ``1m30s``."""
    out = ""
    for unit, size in _UNIT_MS.items():
        count, ms = divmod(ms, size)
        if count and unit != "w":
            out += f"{count}{unit}"
        elif count:  # a week is written in days: 14d reads better than 2w
            ms += count * size
    return out or "0s"


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time: absolute (``ms`` since the epoch), or ``ms`` (negative) from the end of the data."""

    ms: int
    relative: bool = False

    def resolve(self, end_ms: int) -> int:
        return end_ms + self.ms if self.relative else self.ms


def moment(text: str) -> Moment:
    """Parse a point in time; ``ValueError`` says what is accepted."""
    if text == "now":
        return Moment(0, relative=True)
    if text.startswith("-"):
        return Moment(-duration_ms(text[1:]), relative=True)
    if _NUMBER.fullmatch(text):
        if float(text) * 1000 > _LAST_MS:
            raise ValueError(f"{_shown(text)} is no time: in Unix seconds it would lie after the year 9999")
        return Moment(round(float(text) * 1000))
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no time: write 2026-01-31T12:00:00Z, Unix seconds, or -5m from the end"
        ) from None
    return Moment(round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000))


def rfc3339(ms: int) -> str:
    """UTC, to the second (to the millisecond where there is one); Unix seconds where no calendar reaches."""
    if not -62_135_596_800_000 <= ms <= _LAST_MS:
        return f"{ms / 1000:.0f} s"
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds" if ms % 1000 else "seconds")
    return text.replace("+00:00", "Z")


def duration_option(text: str) -> int:
    """``type=`` of an argparse option."""
    try:
        return duration_ms(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def moment_option(text: str) -> Moment:
    """``type=`` of an argparse option."""
    try:
        return moment(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_AN_OPTION = re.compile(r"-h|--[a-z][a-z-]*(=.*)?|--", re.DOTALL)


def expression_first(words: list[str]) -> list[str]:
    """An expression may start with a minus (``-Inf``, ``-kv:x``): argparse takes it for a word when it starts with a
    space, which PromQL ignores."""
    return [" " + word if word.startswith("-") and not _AN_OPTION.fullmatch(word) else word for word in words]


_AGO = re.compile(r"-(\d+(\.\d+)?(ms|[smhdwy]))+")


def bind_negative(words: list[str]) -> list[str]:
    """``--at -5m`` → ``--at=-5m``: argparse would take ``-5m`` for an option."""
    bound: list[str] = []
    for word in words:
        if bound and _AGO.fullmatch(word) and bound[-1].startswith("--") and "=" not in bound[-1]:
            bound[-1] += "=" + word
        else:
            bound.append(word)
    return bound
