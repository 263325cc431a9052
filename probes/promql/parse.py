"""Text to ``Expr``: the ``promql-parser`` package reads it, we convert, and find the column of an error."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from probes.printable import one_line
from probes.promql import ast
from probes.promql.errors import PromQLError
from probes.promql.limits import check_limits
from probes.promql.patterns import fault
from probes.promql.signatures import AGGREGATES, FUNCTIONS, unsupported
from probes.promql.tokens import tokenize

_BINARY = ("+", "-", "*", "/", "%", "^", "atan2", "==", "!=", "<", "<=", ">", ">=", "and", "or", "unless")
_POSIX = re.compile(r"\[\^?\[:\w+:\]")
_MATCH = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


def parse(text: str) -> ast.Expr:
    """Parse an expression; PromQLError (with message, column, text) for anything invalid or unsupported."""
    import promql_parser  # costs a few ms: only those who parse pay

    tokens = tokenize(text)
    if not tokens:
        raise PromQLError("the expression is empty", 1, text)
    check_limits(text, tokens)
    try:
        return _convert(promql_parser.parse(text))
    except ValueError as error:
        from probes.promql.locate import locate  # only an error needs it

        raise locate(text, tokens, str(error)) from None
    except RecursionError:
        raise PromQLError(
            "the expression has too many operators in a row or is nested too deeply", None, text
        ) from None
    except _UnsupportedError as error:
        column = next((t.column for t in tokens if t.kind == "word" and t.text.lower() == error.word), None)
        raise PromQLError(error.message, column, text) from None


class _UnsupportedError(Exception):
    def __init__(self, message: str, word: str) -> None:
        super().__init__(message)
        self.message = message
        self.word = word


@cache
def _operators() -> dict[str, str]:
    """The parser's token for each operator, learned by parsing one example of each: its numbers are its own."""
    import promql_parser

    return {_token(promql_parser.parse(f"a {op} b")): op for op in _BINARY}


@cache
def _aggregates() -> dict[str, str]:
    import promql_parser

    with_parameter = {"quantile": "1, ", "topk": "1, ", "bottomk": "1, ", "count_values": '"x", '}
    return {_token(promql_parser.parse(f"{op}({with_parameter.get(op, '')}a)")): op for op in AGGREGATES}


def _token(node: Any) -> str:
    return str(node.op)


def _convert(node: Any) -> ast.Expr:
    convert = _CONVERTERS.get(type(node).__name__)
    if convert is None:
        raise _UnsupportedError(unsupported("expression", type(node).__name__), "")
    made: ast.Expr = convert(node)
    return made


def _number(node: Any) -> ast.Expr:
    return ast.NumberLiteral(float(node.val))


def _string(node: Any) -> ast.Expr:
    return ast.StringLiteral(str(node.val))


def _ms(span: timedelta | None) -> int:
    return 0 if span is None else span // timedelta(milliseconds=1)


def _at(modifier: Any) -> ast.At:
    if modifier is None:
        return None
    kind = str(modifier.type).rpartition(".")[2]
    if kind in ("Start", "End"):
        return kind.lower()
    moment: datetime = modifier.at
    return round(moment.timestamp() * 1000)


def _matcher(found: Any) -> ast.Matcher:
    op = _MATCH[str(found.op).rpartition(".")[2]]
    if op in ("=~", "!~"):
        if _POSIX.search(found.value):
            message = f"pattern {found.value!r} of label {found.name!r}: classes such as [[:alpha:]] are not supported"
            raise _UnsupportedError(message, found.name)
        try:
            wrong = fault(found.value)
        except re.error as error:
            message = f"pattern {found.value!r} of label {found.name!r} is not supported: {error}"
            raise _UnsupportedError(message, found.name) from None
        if wrong is not None:
            raise _UnsupportedError(
                f"pattern {one_line(found.value, 60)!r} of label {found.name!r} {wrong}", found.name
            )
    return ast.Matcher(found.name, op, found.value)


def _selector(node: Any) -> ast.VectorSelector:
    if node.matchers.or_matchers:
        raise _UnsupportedError(unsupported("operator between matchers", "or"), "or")
    matchers = tuple(_matcher(m) for m in node.matchers.matchers)
    return ast.VectorSelector(node.name, matchers, _ms(node.offset), _at(node.at))


def _matrix(node: Any) -> ast.Expr:
    return ast.MatrixSelector(_selector(node.vector_selector), _ms(node.range))


def _subquery(node: Any) -> ast.Expr:
    step = None if node.step is None else _ms(node.step)
    return ast.Subquery(_convert(node.expr), _ms(node.range), step, _ms(node.offset), _at(node.at))


def _call(node: Any) -> ast.Expr:
    name = str(node.func.name)
    if name not in FUNCTIONS:
        raise _UnsupportedError(unsupported("function", name), name)
    return ast.Call(name, tuple(_convert(arg) for arg in node.args))


def _aggregate(node: Any) -> ast.Expr:
    op = _aggregates().get(str(node.op))
    if op is None:
        raise _UnsupportedError(unsupported("aggregation", str(node.op)), str(node.op))
    grouping: tuple[str, ...] | None = None
    without = False
    if node.modifier is not None:
        grouping = tuple(node.modifier.labels)
        without = str(node.modifier.type).rpartition(".")[2] == "Without"
    param = node.param
    if isinstance(param, str):
        made: ast.Expr | None = ast.StringLiteral(param)
    else:
        made = None if param is None else _convert(param)
    return ast.Aggregate(op, _convert(node.expr), made, grouping, without)


def _binary(node: Any) -> ast.Expr:
    op = _operators().get(str(node.op))
    if op is None:
        raise _UnsupportedError(unsupported("operator", str(node.op)), str(node.op))
    returns, matching = False, None
    modifier = node.modifier
    if modifier is not None:
        if modifier.fill_values is not None and (modifier.fill_values.lhs, modifier.fill_values.rhs) != (None, None):
            raise _UnsupportedError(unsupported("modifier", "fill"), "fill")
        returns = bool(modifier.return_bool)
        matching = _matching(modifier)
    return ast.Binary(op, _convert(node.lhs), _convert(node.rhs), returns, matching)


def _matching(modifier: Any) -> ast.VectorMatching | None:
    card = str(modifier.card).rpartition(".")[2]
    group = {"ManyToOne": "left", "OneToMany": "right"}.get(card, "")
    if modifier.matching is None and not group:
        return None
    on, labels = False, ()
    if modifier.matching is not None:
        on = str(modifier.matching.type).rpartition(".")[2] == "Include"
        labels = tuple(modifier.matching.labels)
    return ast.VectorMatching(on, labels, group, tuple(modifier.group_labels or ()))


def _unary(node: Any) -> ast.Expr:
    return ast.Unary(_convert(node.expr))


def _paren(node: Any) -> ast.Expr:
    return ast.Paren(_convert(node.expr))


_CONVERTERS: dict[str, Any] = {
    "NumberLiteral": _number,
    "StringLiteral": _string,
    "VectorSelector": _selector,
    "MatrixSelector": _matrix,
    "SubqueryExpr": _subquery,
    "Call": _call,
    "AggregateExpr": _aggregate,
    "BinaryExpr": _binary,
    "UnaryExpr": _unary,
    "ParenExpr": _paren,
}
