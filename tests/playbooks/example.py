"""The example of docs/playbooks.md: a good playbook, to be run and to be broken."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "playbooks.md"
NAME = "prefix-cache-idle.md"
_EXAMPLE = re.compile(rf"<!-- example: {NAME} -->\n~~~markdown\n(.*?)\n~~~\n", re.DOTALL)


def example() -> str:
    """The playbook as it stands on the page."""
    found = _EXAMPLE.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None, f"{PAGE} shows no {NAME}"
    return found[1] + "\n"


def changed(old: str, new: str, count: int = 1) -> str:
    """The example with ``old`` replaced; fails where it is not there, so that a test cannot break nothing."""
    text = example()
    assert old in text, old
    return text.replace(old, new, count)


def line_of(text: str, part: str) -> int:
    """The 1-based line of the first occurrence."""
    return text[: text.index(part)].count("\n") + 1
