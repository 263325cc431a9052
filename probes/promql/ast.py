"""PromQL expressions as frozen nodes; ``str(node)`` is valid PromQL."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import lru_cache
from typing import TypeAlias

from probes.labels import NAME
from probes.records import dataclass

SET_OPERATORS = frozenset({"and", "or", "unless"})
COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})

_PRECEDENCE = {
    "or": 1,
    "and": 2,
    "unless": 2,
    **dict.fromkeys(COMPARISONS, 3),
    "+": 4,
    "-": 4,
    "*": 5,
    "/": 5,
    "%": 5,
    "atan2": 5,
    "^": 6,
}
_UNARY_PRECEDENCE = 5
_ATOM = 9
_PLAIN_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.DOTALL)


@dataclass(frozen=True, slots=True)
class Matcher:
    """A label matcher; ``op`` is one of ``= != =~ !~``. Patterns are anchored at both ends."""

    name: str
    op: str
    value: str

    def accepts(self, found: str) -> bool:
        """True when a label value (the empty string for a missing label) passes."""
        if self.op == "=":
            return found == self.value
        if self.op == "!=":
            return found != self.value
        hit = _pattern(self.value).fullmatch(found) is not None
        return hit if self.op == "=~" else not hit

    def __str__(self) -> str:
        return f"{self.name}{self.op}{quote(self.value)}"


@dataclass(frozen=True, slots=True)
class Node:
    """Base of all expression nodes."""

    def children(self) -> Iterator[Expr]:
        """Direct sub-expressions, left to right."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Node):
                yield value  # type: ignore[misc]
            elif isinstance(value, tuple):
                yield from (v for v in value if isinstance(v, Node))  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class NumberLiteral(Node):
    value: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "NaN"
        if math.isinf(self.value):
            return "Inf" if self.value > 0 else "-Inf"
        if self.value == int(self.value) and abs(self.value) < 1e15:
            return str(int(self.value)) if self.value or math.copysign(1, self.value) > 0 else "-0"
        return repr(self.value)


@dataclass(frozen=True, slots=True)
class StringLiteral(Node):
    value: str

    def __str__(self) -> str:
        return quote(self.value)


At: TypeAlias = int | str | None
"""The ``@`` modifier: a time in ms, ``"start"``, ``"end"`` or None."""


@dataclass(frozen=True, slots=True)
class VectorSelector(Node):
    """``name`` is the metric name or None; ``matchers`` do not repeat it. ``offset_ms`` > 0 looks back."""

    name: str | None
    matchers: tuple[Matcher, ...] = ()
    offset_ms: int = 0
    at: At = None

    @property
    def all_matchers(self) -> tuple[Matcher, ...]:
        """The matchers, that of the name first."""
        return self.matchers if self.name is None else (Matcher(NAME, "=", self.name), *self.matchers)

    def bare(self) -> str:
        """The selector without offset and ``@``."""
        plain = self.name is not None and _PLAIN_NAME.match(self.name) is not None
        shown = self.matchers if plain or self.name is None else self.all_matchers
        inside = ",".join(map(str, shown))
        return (self.name or "" if plain else "") + ("{" + inside + "}" if inside or not plain else "")

    def __str__(self) -> str:
        return self.bare() + modifiers(self.offset_ms, self.at)


@dataclass(frozen=True, slots=True)
class MatrixSelector(Node):
    selector: VectorSelector
    range_ms: int

    def __str__(self) -> str:
        inner = self.selector
        return f"{inner.bare()}[{duration(self.range_ms)}]" + modifiers(inner.offset_ms, inner.at)


@dataclass(frozen=True, slots=True)
class Subquery(Node):
    """``step_ms`` None means the engine's default step."""

    expr: Expr
    range_ms: int
    step_ms: int | None = None
    offset_ms: int = 0
    at: At = None

    def __str__(self) -> str:
        step = duration(self.step_ms) if self.step_ms is not None else ""
        return f"{_wrap(self.expr, _ATOM)}[{duration(self.range_ms)}:{step}]" + modifiers(self.offset_ms, self.at)


@dataclass(frozen=True, slots=True)
class Call(Node):
    func: str
    args: tuple[Expr, ...] = ()

    def __str__(self) -> str:
        return f"{self.func}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True)
class Aggregate(Node):
    """``grouping`` None means no clause; ``without`` tells ``without`` from ``by``."""

    op: str
    expr: Expr
    param: Expr | None = None
    grouping: tuple[str, ...] | None = None
    without: bool = False

    def __str__(self) -> str:
        clause = ""
        if self.grouping is not None:
            clause = f" {'without' if self.without else 'by'} ({', '.join(self.grouping)}) "
        inside = str(self.expr) if self.param is None else f"{self.param}, {self.expr}"
        return f"{self.op}{clause}({inside})"


@dataclass(frozen=True, slots=True)
class VectorMatching:
    """``group`` is "", "left" or "right"; ``labels`` are those of ``on`` or ``ignoring``."""

    on: bool = False
    labels: tuple[str, ...] = ()
    group: str = ""
    include: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{'on' if self.on else 'ignoring'} ({', '.join(self.labels)})"
        return text + (f" group_{self.group} ({', '.join(self.include)})" if self.group else "")


@dataclass(frozen=True, slots=True)
class Binary(Node):
    op: str
    lhs: Expr
    rhs: Expr
    return_bool: bool = False
    matching: VectorMatching | None = None

    def __str__(self) -> str:
        level = _PRECEDENCE[self.op]
        right_first = self.op == "^"
        left = _wrap(self.lhs, level + 1 if right_first else level)
        right = _wrap(self.rhs, level if right_first else level + 1)
        words = [left, self.op, *(["bool"] if self.return_bool else [])]
        if self.matching is not None:
            words.append(str(self.matching))
        return " ".join([*words, right])


@dataclass(frozen=True, slots=True)
class Unary(Node):
    """A minus before an expression that is no number."""

    expr: Expr

    def __str__(self) -> str:
        return f"-{_wrap(self.expr, _UNARY_PRECEDENCE + 1)}"


@dataclass(frozen=True, slots=True)
class Paren(Node):
    expr: Expr

    def __str__(self) -> str:
        return f"({self.expr})"


Expr: TypeAlias = (
    NumberLiteral
    | StringLiteral
    | VectorSelector
    | MatrixSelector
    | Subquery
    | Call
    | Aggregate
    | Binary
    | Unary
    | Paren
)


def _level(expr: Expr) -> int:
    if isinstance(expr, Binary):
        return _PRECEDENCE[expr.op]
    if isinstance(expr, Unary):
        return _UNARY_PRECEDENCE
    if isinstance(expr, NumberLiteral) and (expr.value < 0 or str(expr).startswith("-")):
        return _UNARY_PRECEDENCE
    return _ATOM


def _wrap(expr: Expr, level: int) -> str:
    return str(expr) if _level(expr) >= level else f"({expr})"


def quote(text: str) -> str:
    """A PromQL string literal."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return '"' + plain.replace("\r", "\\r") + '"'


def duration(span_ms: int) -> str:
    """A PromQL duration, such as ``1h30m``."""
    sign, rest, parts = ("-" if span_ms < 0 else ""), abs(span_ms), []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return sign + ("".join(parts) or "0s")


def modifiers(offset_ms: int, at: At) -> str:
    """The text of ``@`` and ``offset``, with a leading space each; empty when there are none."""
    text = ""
    if at is not None:
        text += f" @ {at}()" if isinstance(at, str) else f" @ {at / 1000:.3f}"
    return text + (f" offset {duration(offset_ms)}" if offset_ms else "")


def walk(expr: Expr) -> Iterator[Expr]:
    """The node and everything under it, parents first, left to right."""
    yield expr
    for child in expr.children():
        yield from walk(child)


def transform(expr: Expr, visit: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild a tree bottom-up: ``visit`` gets each node with its children already rebuilt.

    It answers with the replacement, or None to keep the node. A MatrixSelector's selector is visited first; a
    replacement that is no VectorSelector is an error there (ranges are rewritten at the MatrixSelector or above).
    """
    changed: dict[str, object] = {}
    for item in fields(expr):
        value = getattr(expr, item.name)
        if isinstance(value, Node):
            made: object = transform(value, visit)  # type: ignore[arg-type]
        elif isinstance(value, tuple) and any(isinstance(v, Node) for v in value):
            made = tuple(transform(v, visit) for v in value)
        else:
            continue
        if made != value:
            changed[item.name] = made
    rebuilt: Expr = replace(expr, **changed) if changed else expr  # type: ignore[arg-type]
    if isinstance(rebuilt, MatrixSelector) and not isinstance(rebuilt.selector, VectorSelector):
        raise TypeError(f"a range needs a selector, not {rebuilt.selector}")
    return visit(rebuilt) or rebuilt
