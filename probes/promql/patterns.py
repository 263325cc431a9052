"""Label patterns that a backtracking matcher can take ages over, refused before they meet a label.

Prometheus matches in linear time (RE2); Python's ``re`` tries every way to divide a text among the repetitions of a
pattern. The rules here are static and on the safe side: a repetition may hold nothing that can be read in two ways.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any, Final

LONGEST_PATTERN: Final = 1_000
MANY: Final = 10
"""A repetition that may come this often counts as unbounded (policy)."""
_IN_A_ROW: Final = 3
_SPACED: Final = 6
_BEYOND: Final = 256  # stands for every character from here on
_ALL: Final = frozenset(range(_BEYOND + 1))
_CLASSES: Final = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}
_REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
NESTED: Final = (
    "repeats a part that can be read in more than one way, such as (a*)* or (a|a)*: write it without nesting"
)
IN_A_ROW: Final = "has too many optional or repeated parts in a row that take the same characters"


@lru_cache(maxsize=1024)
def fault(text: str) -> str | None:
    """What is wrong with a pattern, or None; ``re.error`` for one that is none at all."""
    if len(text) > LONGEST_PATTERN:
        return f"has {len(text)} characters, more than {LONGEST_PATTERN}"
    re.compile(text)
    parser: Any = importlib.import_module("re._parser")
    return _fault(parser.parse(text), 1)


def _fault(items: Sequence[Any], times: int) -> str | None:
    """The fault of a sequence that may come ``times`` often (``MANY`` at most)."""
    row: list[frozenset[int]] = []  # variable parts one after the other that take the same characters
    spaced: list[frozenset[int]] = []  # the same with characters in between that do not part them
    for op, argument in _flat(items):
        found = _item_fault(str(op), argument, times)
        if found is not None:
            return found
        mine, empty = _first([(op, argument)])
        spaced = [one for one in spaced if empty or one & mine]
        if empty or (str(op) in _REPEATS and argument[0] != argument[1]):
            row, spaced = [*(one for one in row if one & mine), mine], [*spaced, mine]
        else:
            row = []
        if len(row) > _IN_A_ROW or len(spaced) > _SPACED:
            return IN_A_ROW
    return None


def _flat(items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """The sequence with groups opened: they change nothing of how it is matched."""
    for op, argument in items:
        if str(op) == "SUBPATTERN":
            yield from _flat(argument[-1])
        elif str(op) != "AT":
            yield op, argument


def _item_fault(op: str, argument: Any, times: int) -> str | None:
    if op in _REPEATS:
        low, high, inner = argument
        often = min(MANY, int(high))
        if times > 1 and low != high and (times >= MANY or often >= MANY):
            return NESTED
        return _fault(inner, max(times, often))
    if op == "BRANCH":
        branches = argument[1]
        if times >= MANY and _overlap(branches):
            return NESTED
        return next((found for one in branches if (found := _fault(one, times)) is not None), None)
    return None


def _overlap(branches: Sequence[Any]) -> bool:
    """Whether two branches can begin alike, or one is empty."""
    firsts = [_first(one) for one in branches]
    return any(empty for _, empty in firsts) or any(a & b for (a, _), (b, _) in combinations(firsts, 2))


def _first(items: Iterable[Any]) -> tuple[frozenset[int], bool]:
    """Characters that a sequence can begin with (both cases of each), and whether it can be empty."""
    found: frozenset[int] = frozenset()
    for op, argument in items:
        some, empty = _first_of(str(op), argument)
        found |= some
        if not empty:
            return found, False
    return found, True


def _first_of(op: str, argument: Any) -> tuple[frozenset[int], bool]:
    if op == "LITERAL":
        return _literal(argument), False
    if op == "NOT_LITERAL":
        return _ALL - {argument}, False
    if op == "IN":
        return _one_of(argument), False
    if op == "AT":
        return frozenset(), True
    if op in _REPEATS:
        some, empty = _first(argument[2])
        return some, empty or argument[0] == 0
    if op == "SUBPATTERN":
        return _first(argument[-1])
    if op == "BRANCH":
        firsts = [_first(one) for one in argument[1]]
        return frozenset().union(*(some for some, _ in firsts)), any(empty for _, empty in firsts)
    return _ALL, op != "ANY"


def _literal(code: int) -> frozenset[int]:
    both = {chr(code).lower(), chr(code).upper(), chr(code)}
    return frozenset(min(ord(one), _BEYOND) for one in both if len(one) == 1)


def _one_of(items: Sequence[Any]) -> frozenset[int]:
    found: frozenset[int] = frozenset()
    negated = False
    for op, argument in items:
        if str(op) == "NEGATE":
            negated = True
        elif str(op) == "LITERAL":
            found |= {min(argument, _BEYOND)} if negated else _literal(argument)
        elif str(op) == "RANGE":
            found |= frozenset(range(min(argument[0], _BEYOND), min(argument[1], _BEYOND) + 1))
        else:
            found |= _category(str(argument))
    return (_ALL - found) | {_BEYOND} if negated else found


@lru_cache(maxsize=16)
def _category(name: str) -> frozenset[int]:
    words = name.removeprefix("CATEGORY_").split("_")
    inside = re.compile(_CLASSES[words[-1]])
    found = frozenset(code for code in range(_BEYOND) if inside.match(chr(code))) | {_BEYOND}
    return (_ALL - found) | {_BEYOND} if words[0] == "NOT" else found
