"""Foreign text made fit for one line of a message: what a target sends must not steer the screen that shows it."""

from __future__ import annotations

import re

LONGEST = 200
"""Characters of foreign text in a message (policy)."""

# C0 and C1 controls, DEL, separators that break lines, marks that reorder text, halves of characters.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(text: str, most: int | None = None) -> str:
    """The text with controls as escapes (``\\x1b``, ``\\n``); cut with … after ``most`` characters."""
    if not (text.isascii() and text.isprintable()):
        text = _UNSAFE.sub(lambda found: ascii(found.group())[1:-1], text)
    return text if most is None or len(text) <= most else text[: most - 1] + "…"


def has_control(text: str) -> bool:
    """Whether something in the text would be escaped."""
    return _UNSAFE.search(text) is not None
