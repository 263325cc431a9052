"""Limits of what an expression may hold, checked before the parser sees it: beyond them it panics or overflows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from probes.promql.errors import PromQLError
from probes.promql.tokens import Token

MOST_TOKENS: Final = 2_000
DEEPEST: Final = 100
LAST_SECOND: Final = 253_402_300_799
"""The end of the year 9999."""
LONGEST_S: Final = 100 * 365 * 86_400
"""A hundred years."""
MOST_INNER_STEPS: Final = 11_000
"""Steps of one window of a subquery: what Prometheus allows a range query."""
MOST_CELLS: Final = 5_000_000
"""Steps times series of a selector, subquery or range function: 40 MB of numbers, a few times over (policy)."""
MOST_SHOWN: Final = 500_000
"""Values of a range query that are handed out as text (policy; a second or two)."""

_PART = re.compile(r"(\d+)(ms|[smhdwy])")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}


def check_limits(text: str, tokens: Sequence[Token]) -> None:
    """PromQLError for an expression that is too large or too deep, and for a time or duration out of range."""
    if len(tokens) > MOST_TOKENS:
        raise PromQLError(f"the expression has more than {MOST_TOKENS} tokens", None, text)
    depth = 0
    for i, token in enumerate(tokens):
        if token.kind == "sign":
            depth += (token.text in "([{") - (token.text in ")]}")
            if depth > DEEPEST:
                raise PromQLError(f"nested more than {DEEPEST} deep", token.column, text)
            if token.text == "@":
                _check_moment(text, tokens[i + 1 : i + 3])
            elif token.text in ("[", ":"):
                _check_span(text, tokens[i + 1 : i + 3])
        elif token.kind == "word" and token.text.lower() == "offset":
            _check_span(text, tokens[i + 1 : i + 3])
        elif token.kind == "duration" and _seconds(token) > LONGEST_S:
            raise PromQLError(f"duration {token.text} is longer than 100 years", token.column, text)


def check_inner_steps(count: int, shown: str) -> None:
    """PromQLError for a window of a subquery with too many steps."""
    if count > MOST_INNER_STEPS:
        raise PromQLError(
            f"the subquery [{shown.rpartition('[')[2]} has {count:,} steps over the data that there is, and "
            f"{MOST_INNER_STEPS:,} is the most: give it a longer step"
        )


def check_cells(steps: int, series: int) -> None:
    """PromQLError for more numbers than can be held: steps times series."""
    if steps * series > MOST_CELLS:
        over = f" of {series:,} series" if series > 1 else ""
        raise PromQLError(
            f"{steps:,} steps{over} are more than the most there may be, {MOST_CELLS:,} values: "
            "ask for fewer steps or fewer series"
        )


def _seconds(token: Token) -> float:
    if token.kind == "duration":
        return sum(float(count) * _SECONDS[unit] for count, unit in _PART.findall(token.text))
    return float(int(token.text, 16)) if token.text[:2].lower() == "0x" else float(token.text)


def _check_moment(text: str, following: Sequence[Token]) -> None:
    signed = bool(following) and following[0].text in ("-", "+")
    number = following[1:2] if signed else following[:1]
    if not number or number[0].kind not in ("number", "duration"):
        return
    seconds = _seconds(number[0])
    if seconds > LAST_SECOND or (signed and following[0].text == "-" and seconds):
        raise PromQLError("the time after @ must lie between 1970 and 9999", number[0].column, text)


def _check_span(text: str, following: Sequence[Token]) -> None:
    signed = bool(following) and following[0].text in ("-", "+")
    span = following[1:2] if signed else following[:1]
    if not span:
        return
    if span[0].kind == "word" and span[0].text.lower() in ("inf", "nan"):
        raise PromQLError(f"unexpected {span[0].text!r}, expected a duration", span[0].column, text)
    if span[0].kind == "number" and _seconds(span[0]) > LONGEST_S:
        raise PromQLError(f"duration {span[0].text} is longer than 100 years", span[0].column, text)
