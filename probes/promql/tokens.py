"""A small PromQL tokenizer that knows columns; the parser proper gives no places."""

from __future__ import annotations

import re
from collections.abc import Iterator

from probes.promql.errors import PromQLError
from probes.records import dataclass

_SPACE = re.compile(r"(?:\s|#[^\n]*)+")
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
_DURATION = re.compile(r"(?:\d+(?:ms|[smhdwy]))+(?![\w.])")
_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_WORD = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SIGN = re.compile(r"=~|!~|==|!=|<=|>=|[-+*/%^<>=(){}\[\],:@]")
_OPENERS = {"(": ")", "{": "}", "[": "]"}
_NAMES = {"(": "parenthesis", "{": "brace", "[": "bracket"}


@dataclass(frozen=True, slots=True)
class Token:
    """``kind`` is word, number, duration, string or sign; ``column`` counts from 1; ``end`` is one past the last."""

    kind: str
    text: str
    column: int
    end: int


def tokenize(text: str) -> list[Token]:
    """Tokens of an expression; PromQLError for a bad character, number, quote or bracket."""
    found = list(_scan(text))
    _check_pairs(text, found)
    return found


def _scan(text: str) -> Iterator[Token]:
    at = 0
    inside: list[str] = []
    while at < len(text):
        if space := _SPACE.match(text, at):
            at = space.end()
            continue
        token = _next(text, at, inside)
        if token.kind == "sign" and token.text in _OPENERS:
            inside.append(token.text)
        elif token.kind == "sign" and inside and token.text in _OPENERS.values():
            inside.pop()
        yield token
        at = token.end - 1


def _next(text: str, at: int, inside: list[str]) -> Token:
    if text[at] in "\"'`":
        return _string(text, at)
    word = (_LABEL_WORD if inside and inside[-1] in "{[" else _WORD).match(text, at)
    if word and not (inside and inside[-1] == "[" and word.group().startswith(":")):
        return Token("word", word.group(), at + 1, word.end() + 1)
    for kind, pattern in (("duration", _DURATION), ("number", _NUMBER), ("sign", _SIGN)):
        if hit := pattern.match(text, at):
            return Token(kind, hit.group(), at + 1, hit.end() + 1)
    if text[at].isdigit() or text[at] == ".":
        bad = re.compile(r"[\w.]+").match(text, at)
        shown = bad.group() if bad else text[at]
        raise PromQLError(f"bad number or duration {shown!r}", at + 1, text)
    raise PromQLError(f"unexpected character {text[at]!r}", at + 1, text)


def _string(text: str, start: int) -> Token:
    mark, at = text[start], start + 1
    while at < len(text):
        if text[at] == "\\" and mark != "`":
            at += 2
            continue
        if text[at] == mark:
            return Token("string", text[start : at + 1], start + 1, at + 2)
        if text[at] == "\n" and mark != "`":
            break
        at += 1
    raise PromQLError(f"this quote {mark} is never closed", start + 1, text)


def _check_pairs(text: str, tokens: list[Token]) -> None:
    waiting: list[Token] = []
    for token in tokens:
        if token.kind != "sign":
            continue
        if token.text in _OPENERS:
            waiting.append(token)
        elif token.text in _OPENERS.values():
            if not waiting:
                raise PromQLError(f"unexpected {token.text!r}: nothing is open here", token.column, text)
            opened = waiting.pop()
            if _OPENERS[opened.text] != token.text:
                raise PromQLError(
                    f"unexpected {token.text!r}: the {opened.text!r} at column {opened.column} is still open",
                    token.column,
                    text,
                )
    if waiting:
        opened = waiting[-1]
        raise PromQLError(f"this {_NAMES[opened.text]} {opened.text!r} is never closed", opened.column, text)
