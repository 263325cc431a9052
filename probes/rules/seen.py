"""Which labels of a sub-expression's result can be observed in the whole's: the others need not be set."""

from __future__ import annotations

from collections.abc import Iterable

from probes.labels import NAME
from probes.promql.ast import (
    COMPARISONS,
    SET_OPERATORS,
    Aggregate,
    Binary,
    Call,
    Expr,
    NumberLiteral,
    Paren,
    StringLiteral,
    Subquery,
    Unary,
)
from probes.records import dataclass

KEEP_NAMES = frozenset(
    {"last_over_time", "first_over_time", "sort", "sort_desc", "sort_by_label", "sort_by_label_desc"}
)
_SELECTING = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})
_RELABELLING = frozenset({"label_replace", "label_join"})


@dataclass(frozen=True, slots=True)
class Seen:
    """A set of label names, given by its members or (``others``) by those that are not in it."""

    names: frozenset[str] = frozenset()
    others: bool = False

    def __contains__(self, label: object) -> bool:
        return (label in self.names) != self.others

    def adding(self, labels: Iterable[str]) -> Seen:
        more = frozenset(labels)
        return Seen(self.names - more if self.others else self.names | more, self.others)

    def dropping(self, label: str) -> Seen:
        one = frozenset((label,))
        return Seen(self.names | one if self.others else self.names - one, self.others)


ALL = Seen(others=True)
NONE = Seen()


def below(expr: Expr, seen: Seen) -> Seen:
    """What is seen of the results of ``expr``'s children, when ``seen`` is seen of its own."""
    if isinstance(expr, Paren | Subquery):
        return seen
    if isinstance(expr, Aggregate):
        return _below_aggregate(expr, seen)
    if isinstance(expr, Binary):
        return _below_binary(expr, seen)
    if isinstance(expr, Call):
        return below_call(expr, seen)
    return seen.dropping(NAME) if isinstance(expr, Unary) else seen


def below_call(call: Call, seen: Seen) -> Seen:
    if call.func in _RELABELLING:
        named = NAME in seen or StringLiteral(NAME) in call.args
        return ALL if named else ALL.dropping(NAME)
    if call.func in ("absent", "absent_over_time", "scalar"):
        return NONE
    if call.func == "histogram_quantile":
        return seen.adding(("le",)).dropping(NAME)
    return seen if call.func in KEEP_NAMES else seen.dropping(NAME)


def _below_aggregate(expr: Aggregate, seen: Seen) -> Seen:
    grouping = expr.grouping or ()
    if expr.op in _SELECTING:
        return ALL if expr.without else seen.adding(grouping)
    return Seen(frozenset((NAME, *grouping)), others=True) if expr.without else Seen(frozenset(grouping))


def _below_binary(expr: Binary, seen: Seen) -> Seen:
    keeps = expr.op in SET_OPERATORS or (expr.op in COMPARISONS and not expr.return_bool)
    if isinstance(expr.lhs, NumberLiteral) or isinstance(expr.rhs, NumberLiteral):
        return seen if keeps else seen.dropping(NAME)
    matching = expr.matching
    asked = matching is not None and NAME in (*matching.labels, *matching.include)
    return ALL if asked or (keeps and NAME in seen) else ALL.dropping(NAME)
