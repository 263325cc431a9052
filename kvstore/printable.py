"""Foreign text for a terminal: what a file, a driver or a word of the command line says must not steer it."""

from __future__ import annotations


def printable(text: str) -> str:
    """One line: what cannot be shown (controls, marks that reorder text, halves of characters) as escapes: `\\x1b`."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else _escape(sign) for sign in text)


def _escape(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")
