"""Text as lines: wrapping, and the little Markdown that a runbook page uses."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

Line = list[tuple[str, str]]
"""One line as runs of (text, style)."""

_CODE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*")
_NAME_PART = re.compile(r"[^_:/.,]*[_:/.,]+ *|[^_:/.,]+")
_CODE_PART = re.compile(r"[^,(){}\[\]/*+]*[,(){}\[\]/*+]+ *|[^,(){}\[\]/*+]+")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


def wrapped(text: str, width: int, style: str = "text", first: str = "", rest: str | None = None) -> Iterator[Line]:
    """Lines of at most ``width`` cells; ``first`` and ``rest`` lead the first and the following ones."""
    lead = first if rest is None else rest
    room = max(8, width - len(first))
    if any(len(word) > room for word in text.split()):
        body = _filled(text, room, _NAME_PART)
    else:
        body = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
    for index, line in enumerate(body):
        yield [(first if index == 0 else " " * len(first) if rest is None else lead, style), (line, style)]


def code(text: str, width: int, indent: str = "  ") -> Iterator[Line]:
    """An expression or a command: broken at a blank, else behind a bracket or comma, in a name only where none fits."""
    for line in _filled(text, max(8, width - len(indent)), _CODE_PART):
        yield [(indent, "code"), (line, "code")]


def _filled(text: str, room: int, part: re.Pattern[str]) -> list[str]:
    """Lines of at most ``room`` cells; a word that is longer is broken between its parts."""
    lines, line = list[str](), ""
    for piece in _pieces(text, room, part):
        if line and len(line) + len(piece.rstrip()) > room:
            lines.append(line.rstrip())
            line = ""
        line += piece
    return [*lines, line.rstrip()]


def _pieces(text: str, room: int, part: re.Pattern[str]) -> Iterator[str]:
    """The words, each with its blanks, of too long ones the parts, of too long parts what fills a line."""
    for word in re.findall(r"\S+ *", re.sub(r"\s", " ", text)):
        for piece in [word] if len(word.rstrip()) <= room else part.findall(word):
            if len(piece.rstrip()) <= room:
                yield piece
            else:
                yield from (piece[at : at + room] for at in range(0, len(piece), room))


def markdown(text: str, width: int) -> Iterator[Line]:
    """Headings, paragraphs, lists and code blocks of a runbook page; anything else as it stands."""
    paragraph: list[str] = []
    fenced = False
    for raw in [*text.splitlines(), ""]:
        line = raw.rstrip()
        if line.lstrip().startswith("```"):
            yield from _flush(paragraph, width)
            fenced = not fenced
        elif fenced:
            yield [("  " + line, "code")]
        elif not line:
            had = bool(paragraph)
            yield from _flush(paragraph, width)
            if had:
                yield []
        elif line.startswith("#"):
            yield from _flush(paragraph, width)
            yield [(line.lstrip("# "), "title")]
        elif line.lstrip().startswith(("- ", "* ", "|")) or re.match(r"\s*\d+\. ", line):
            yield from _flush(paragraph, width)
            paragraph.append(line)
        else:
            paragraph.append(line.strip())


def _flush(paragraph: list[str], width: int) -> Iterator[Line]:
    if not paragraph:
        return
    text = _LINK.sub(r"\1 (\2)", " ".join(paragraph))
    paragraph.clear()
    if text.lstrip().startswith("|"):
        yield [(text, "text")]
        return
    lead = re.match(r"\s*(?:[-*]|\d+\.) ", text)
    if lead is None:
        yield from _marked(text, width, "")
        return
    mark = lead.group().lstrip()
    yield from _marked(text[lead.end() :], width, "• " if mark in ("- ", "* ") else mark)


def _marked(text: str, width: int, first: str) -> Iterator[Line]:
    for index, line in enumerate(textwrap.wrap(text, max(8, width - len(first)), break_on_hyphens=False)):
        runs: Line = [(first if index == 0 else " " * len(first), "text")]
        at = 0
        for found in _CODE.finditer(line):
            runs.append((line[at : found.start()], "text"))
            runs.append((found.group(1) or found.group(2), "code" if found.group(1) else "strong"))
            at = found.end()
        runs.append((line[at:], "text"))
        yield runs
