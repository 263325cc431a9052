"""The column of a parse error: the parser says what is wrong, our tokens say where."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from probes.promql.errors import PromQLError
from probes.promql.signatures import ALL_AGGREGATES
from probes.promql.syntax import UnexpectedTokenError, check
from probes.promql.tokens import Token
from probes.records import dataclass

_QUOTED = re.compile(r"'([^']*)'")
_ARGUMENT = re.compile(r"expected type (\w+) in (?:call to function '\w+'|aggregation expression), got (\w+)")
_GOOD_ESCAPE = r"[abfnrtv\\'\"]|x[0-9a-fA-F]{2}|[0-3][0-7]{2}|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}"
_BAD_ESCAPE = re.compile(rf"(?<!\\)(?:\\\\)*\\(?!{_GOOD_ESCAPE})")
_SAMPLES = {"matrix": "a[1m]", "vector": "a", "scalar": "1", "string": '"x"'}
_COMPARISONS = {"==", "!=", "<", "<=", ">", ">="}


@dataclass(frozen=True, slots=True)
class _Call:
    """A call or aggregation: its name, where its text ends, and the spans (0-based, end excluded) of its arguments."""

    name: Token
    end: int
    arguments: tuple[tuple[int, int], ...]


def locate(text: str, tokens: Sequence[Token], message: str) -> PromQLError:
    """The parser's ``message`` as a PromQLError at the token that it is about."""
    try:
        check(tokens)
    except UnexpectedTokenError as error:
        found = error.token
        if found is None:
            return PromQLError(f"the expression ends where {error.expected} is expected", len(text) + 1, text)
        return PromQLError(f"unexpected {found.text!r}, expected {error.expected}", found.column, text)
    column = _column(text, tokens, message)
    if message == "invalid syntax" and column is not None:
        message = "a broken escape sequence in this string"
    return PromQLError(message, column, text)


def _column(text: str, tokens: Sequence[Token], message: str) -> int | None:
    if call := _culprit(text, tokens, message):
        wanted = _ARGUMENT.match(message)
        argument = _argument(text, call, message, wanted[1]) if wanted else None
        return call.name.column if argument is None else argument
    for start, place in _PLACES.items():
        if message.startswith(start):
            found = place(tokens, message)
            return None if found is None else found.column
    found = _quoted(tokens, message)
    return None if found is None else found.column


def _complaint(text: str) -> str | None:
    import promql_parser

    try:
        promql_parser.parse(text)
    except ValueError as error:
        return str(error)
    return None


def _culprit(text: str, tokens: Sequence[Token], message: str) -> _Call | None:
    """The smallest call that by itself draws the same complaint."""
    if "argument" not in message and not _ARGUMENT.match(message) and "unknown function" not in message:
        return None
    guilty = [c for c in _calls(tokens) if _complaint(text[c.name.column - 1 : c.end]) == message]
    return min(guilty, key=lambda call: call.end - call.name.column, default=None)


def _argument(text: str, call: _Call, message: str, wanted: str) -> int | None:
    """The argument whose replacement by one of the wanted type stills the complaint."""
    start = call.name.column - 1
    for low, high in call.arguments:
        tried = text[start:low] + _SAMPLES.get(wanted, "a") + text[high : call.end]
        answer = _complaint(tried)
        worse = _ARGUMENT.match(answer or "")
        if answer != message and not (worse and worse[2] == wanted):
            return low + 1
    return None


def _calls(tokens: Sequence[Token]) -> Iterator[_Call]:
    for i, token in enumerate(tokens[:-1]):
        if token.kind != "word":
            continue
        opener = i + 1
        if token.text.lower() in ALL_AGGREGATES and tokens[opener].text.lower() in ("by", "without"):
            opener = _closer(tokens, opener + 1) + 1
        if opener < len(tokens) and tokens[opener].text == "(":
            closer = _closer(tokens, opener)
            yield _Call(token, tokens[closer].end - 1, tuple(_spans(tokens, opener, closer)))


def _closer(tokens: Sequence[Token], opener: int) -> int:
    depth = 0
    for i in range(opener, len(tokens)):
        if tokens[i].kind == "sign":
            depth += (tokens[i].text in "([{") - (tokens[i].text in ")]}")
            if depth == 0:
                return i
    return len(tokens) - 1


def _spans(tokens: Sequence[Token], opener: int, closer: int) -> Iterator[tuple[int, int]]:
    depth, begin = 0, opener + 1
    for i in range(opener + 1, closer + 1):
        sign = tokens[i].text if tokens[i].kind == "sign" else ""
        if (sign == "," and depth == 0) or i == closer:
            if i > begin:
                yield tokens[begin].column - 1, tokens[i - 1].end - 1
            begin = i + 1
        depth += (sign in ("(", "[", "{")) - (sign in (")", "]", "}"))


def _quoted(tokens: Sequence[Token], message: str) -> Token | None:
    words = _QUOTED.findall(message)
    return next((t for word in words for t in tokens if t.text.strip("\"'`").lower() == word.lower()), None)


def _after(tokens: Sequence[Token], test: Callable[[Token, Token], bool]) -> Token | None:
    """The first token for which ``test(previous, token)`` holds."""
    return next((b for a, b in pairwise(tokens) if test(a, b)), None)


def _pattern(tokens: Sequence[Token], message: str) -> Token | None:
    shown = message.removeprefix("illegal regex for ")
    regexes = [b for a, b in pairwise(tokens) if a.text in ("=~", "!~")]
    return next((t for t in regexes if t.text[1:-1] == shown), regexes[0] if regexes else None)


def _scalars(tokens: Sequence[Token], message: str) -> Token | None:
    bare = [i for i, t in enumerate(tokens[:-1]) if t.text in _COMPARISONS and tokens[i + 1].text != "bool"]
    between = [i for i in bare if i and tokens[i - 1].kind == tokens[i + 1].kind == "number"]
    return tokens[(between or bare)[0]] if bare else None


def _second_offset(tokens: Sequence[Token], message: str) -> Token | None:
    offsets = [t for t in tokens if t.text.lower() == "offset"]
    return offsets[1] if len(offsets) > 1 else None


def _escape(tokens: Sequence[Token], message: str) -> Token | None:
    quoted = (t for t in tokens if t.kind == "string" and not t.text.startswith("`"))
    return next((t for t in quoted if _BAD_ESCAPE.search(t.text[1:-1])), None)


def _no_operand(tokens: Sequence[Token], message: str) -> Token | None:
    return next((t for t in tokens if t.kind == "string"), None) or next((t for t in tokens if t.text == "["), None)


_PLACES: dict[str, Callable[[Sequence[Token], str], Token | None]] = {
    "illegal regex": _pattern,
    "invalid syntax": _escape,
    "unknown escape sequence": _escape,
    "comparisons between scalars": _scalars,
    "bool modifier": lambda tokens, _: _after(tokens, lambda a, b: b.text == "bool" and a.text not in _COMPARISONS),
    "no grouping allowed": lambda tokens, _: next((t for t in tokens if t.text.startswith("group_")), None),
    "offset may not": _second_offset,
    "offset modifier must": lambda tokens, _: next((t for t in tokens if t.text.lower() == "offset"), None),
    "@ modifier": lambda tokens, _: next((t for t in tokens if t.text == "@"), None),
    "vector selector must": lambda tokens, _: next((t for t in tokens if t.text == "{"), None),
    "metric name must not": lambda tokens, _: next((t for t in tokens if t.text == "__name__"), None),
    "duration must be": lambda tokens, _: next((t for t in tokens if re.fullmatch(r"0+\w*", t.text)), None),
    "binary expression must": _no_operand,
    "subquery is only": lambda tokens, _: next((t for t in tokens if t.text == "["), None),
}
