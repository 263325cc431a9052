"""Shorthands that playbooks share: ``$name`` stands for an expression."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml

from playbooks.frontmatter import LOADER

_TERM = re.compile(r"\$([a-z_]+)")
GIVEN = frozenset({"window", "span", "recent", "interval"})


class TermError(ValueError):
    """A ``$name`` that nobody defined."""


@cache
def terms() -> Mapping[str, str]:
    """The packaged shorthands, each expanded to plain PromQL (``$window`` and its kin left in)."""
    text = Path(__file__).with_name("terms.yml").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for name, expr in yaml.load(text, Loader=LOADER).items():
        found[name] = _put(" ".join(str(expr).split()), found)
    return found


def expand(expr: str) -> str:
    """Replace every shorthand; those that the grid fills in stay. Raises TermError for an unknown one."""
    return _put(" ".join(expr.split()), terms())


def _put(expr: str, known: Mapping[str, str]) -> str:
    def one(match: re.Match[str]) -> str:
        name = match.group(1)
        if name in GIVEN:
            return match.group(0)
        if name not in known:
            close = ", ".join(sorted(known))
            raise TermError(f"unknown shorthand ${name}; there are $window, $span, $recent, $interval, {close}")
        return f"({known[name]})"

    return _TERM.sub(one, expr)
