"""Finds the first token at which an expression cannot go on: the grammar of PromQL, without building anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from probes.promql.signatures import ALL_AGGREGATES
from probes.promql.tokens import Token

_OPERATORS: Final = {"+", "-", "*", "/", "%", "^", "==", "!=", "<", "<=", ">", ">="}
_WORD_OPERATORS: Final = {"and", "or", "unless", "atan2"}
_RESERVED: Final = {*_WORD_OPERATORS, "on", "ignoring", "group_left", "group_right", "bool", "offset", "by", "without"}
_NUMBERS: Final = {"inf", "nan"}


class UnexpectedTokenError(Exception):
    """``token`` None means the end of the expression."""

    def __init__(self, token: Token | None, expected: str) -> None:
        super().__init__(expected)
        self.token = token
        self.expected = expected


def check(tokens: Sequence[Token]) -> None:
    """Raise UnexpectedTokenError at the first token that does not fit."""
    reader = _Reader(tokens)
    reader.expression()
    if reader.peek() is not None:
        reader.fail("an operator or the end")


class _Reader:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens
        self.at = 0

    def peek(self, ahead: int = 0) -> Token | None:
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else None

    def text(self, ahead: int = 0) -> str:
        token = self.peek(ahead)
        return token.text.lower() if token is not None and token.kind != "string" else ""

    def fail(self, expected: str) -> None:
        raise UnexpectedTokenError(self.peek(), expected)

    def take(self, text: str) -> None:
        if self.text() != text:
            self.fail(repr(text))
        self.at += 1

    def kind(self, *kinds: str, expected: str) -> None:
        token = self.peek()
        if token is None or token.kind not in kinds:
            self.fail(expected)
        self.at += 1

    def expression(self) -> None:
        self.operand()
        while self.text() in _OPERATORS or self.text() in _WORD_OPERATORS:
            self.at += 1
            if self.text() == "bool":
                self.at += 1
            if self.text() in ("on", "ignoring"):
                self.at += 1
                self.names()
                if self.text() in ("group_left", "group_right"):
                    self.at += 1
                    if self.text() == "(":
                        self.names()
            self.operand()

    def operand(self) -> None:
        while self.text() in ("+", "-"):
            self.at += 1
        self.primary()
        while self.text() in ("[", "offset", "@"):
            self.suffix()

    def primary(self) -> None:
        token = self.peek()
        if token is None:
            self.fail("an expression")
        elif token.kind in ("number", "duration", "string"):
            self.at += 1
        elif token.text == "(":
            self.at += 1
            self.expression()
            self.take(")")
        elif token.text == "{":
            self.matchers()
        elif token.kind == "word":
            self.word(token)
        else:
            self.fail("an expression")

    def word(self, token: Token) -> None:
        name = token.text.lower()
        if name in ALL_AGGREGATES and self.text(1) in ("(", "by", "without"):
            self.at += 1
            clause = self.clause()
            self.arguments()
            if not clause:
                self.clause()
            return
        if name in _RESERVED and self.text(1) != "{":
            self.fail("an expression")
        self.at += 1
        if name in _NUMBERS:
            return
        if self.text() == "(":
            self.arguments()
        elif self.text() == "{":
            self.matchers()

    def clause(self) -> bool:
        if self.text() not in ("by", "without"):
            return False
        self.at += 1
        self.names()
        return True

    def arguments(self) -> None:
        self.take("(")
        while self.text() != ")":
            self.expression()
            if self.text() != ")":
                self.comma(")")
        self.at += 1

    def comma(self, closer: str) -> None:
        if self.text() != ",":
            self.fail(f"',' or {closer!r}")
        self.at += 1

    def names(self) -> None:
        self.take("(")
        while self.text() != ")":
            self.kind("word", "string", expected="a label name")
            if self.text() != ")":
                self.comma(")")
        self.at += 1

    def matchers(self) -> None:
        self.take("{")
        while self.text() != "}":
            self.kind("word", "string", expected="a label name")
            if self.text() in ("=", "!=", "=~", "!~"):
                self.at += 1
                self.kind("string", expected="a quoted value")
            elif self.tokens[self.at - 1].kind != "string":
                self.fail("one of = != =~ !~")
            if self.text() != "}":
                self.comma("}")
        self.at += 1

    def suffix(self) -> None:
        opened = self.text()
        self.at += 1
        if opened == "offset":
            if self.text() in ("-", "+"):
                self.at += 1
            self.kind("duration", "number", expected="a duration")
        elif opened == "@":
            self.moment()
        else:
            self.kind("duration", "number", expected="a duration")
            if self.text() == ":":
                self.at += 1
                if self.text() != "]":
                    self.kind("duration", "number", expected="a duration or ']'")
            self.take("]")

    def moment(self) -> None:
        if self.text() in ("start", "end"):
            self.at += 1
            self.take("(")
            self.take(")")
            return
        if self.text() in ("-", "+"):
            self.at += 1
        self.kind("number", "duration", expected="a time in seconds, start() or end()")
