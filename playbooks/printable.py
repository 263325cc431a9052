"""Foreign text for a terminal: what a target, a file or a label says must not steer the screen that shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping

NAME_CHARS = 200
"""Longest label value or target name shown as text (policy: a name is to be recognised, JSON has the whole of it)."""

# C0 and C1 controls, DEL, separators that break lines, marks that reorder or hide text, halves of characters.
_UNSAFE = "\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
_LINE = re.compile(f"[{_UNSAFE}]")
_PAGE = re.compile(f"(?![\n\t])[{_UNSAFE}]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, limit: int | None = None) -> str:
    """One line: controls as escapes (``\\x1b``, ``\\n``, ``\\u2028``), cut with … after ``limit`` characters."""
    if not (text.isascii() and text.isprintable()):
        text = _LINE.sub(_escape, text)
    return text if limit is None else shortened(text, limit)


def shortened(text: str, limit: int = NAME_CHARS) -> str:
    """At most ``limit`` characters, the last of them … where something is missing."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def name_text(text: str) -> str:
    """A label value, or a target's name."""
    return printable(text, NAME_CHARS)


def names_text(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels with values that can be shown."""
    return {name: name_text(value) for name, value in labels.items()}


def page(text: str) -> str:
    """Many lines that are our own but for what was missed: line feeds and tabs stay."""
    return _PAGE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    sign = match[0]
    code = ord(sign)
    return _SHORT.get(sign) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
