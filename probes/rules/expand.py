"""Rewrites an expression over canonical names into one over raw series, with the same result.

A recorded series and its inlined expression differ in one thing that matters: a range function cannot read an
expression. So it is pushed into the alternatives, and the scale is taken out of it where the function is linear.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import cast

from probes.labels import NAME
from probes.promql.ast import (
    Call,
    Expr,
    MatrixSelector,
    Node,
    Paren,
    VectorSelector,
)
from probes.records import dataclass
from probes.rules.canonical import PREFIX, Vocabulary
from probes.rules.errors import ExpansionError
from probes.rules.inline import INSTANT, Reading, inline, set_label
from probes.rules.rule import Rule
from probes.rules.seen import ALL, NONE, Seen, below, below_call

# What a positive factor of the samples does to a function's result: its power. Prometheus documentation, functions.
_POWERS = {
    **dict.fromkeys(("rate", "irate", "increase", "delta", "idelta", "deriv", "predict_linear"), 1),
    **dict.fromkeys(("holt_winters", "double_exponential_smoothing"), 1),
    **{f"{f}_over_time": 1 for f in ("avg", "min", "max", "sum", "last", "first", "quantile", "stddev", "mad")},
    "stdvar_over_time": 2,
    **dict.fromkeys(("changes", "resets", "count_over_time", "present_over_time", "timestamp"), 0),
}


@dataclass(frozen=True, slots=True)
class Expander:
    """Inlines canonical names by the rules that record them."""

    rules: dict[str, list[Rule]]
    vocabulary: Vocabulary

    def expand(self, expr: Expr) -> Expr:
        return self._node(expr, ALL)

    def _node(self, expr: Expr, seen: Seen) -> Expr:
        """``seen``: the labels of this node's result that can be observed in the whole's."""
        if isinstance(expr, VectorSelector):
            return self._read(expr, INSTANT, seen) or expr
        if isinstance(expr, MatrixSelector):
            if self._is_canonical(expr.selector):
                name = expr.selector.name or ""
                raise ExpansionError(f"{expr} needs a function around it, such as rate or last_over_time", name)
            return expr
        return self._call(expr, seen) if isinstance(expr, Call) else self._children(expr, below(expr, seen))

    def _call(self, call: Call, seen: Seen) -> Expr:
        if call.func in ("absent", "absent_over_time"):
            return self._absent(call)
        for index, argument in enumerate(call.args):
            inner = _unwrapped(argument)
            selector = inner.selector if isinstance(inner, MatrixSelector) else inner
            reads = isinstance(inner, MatrixSelector) or call.func == "timestamp"
            if reads and isinstance(selector, VectorSelector) and self._is_canonical(selector):
                reading = self._reading(call, index, inner)
                return self._read(selector, reading, below_call(call, seen)) or call
        return self._children(call, below_call(call, seen))

    def _reading(self, call: Call, index: int, argument: Expr) -> Reading:
        """The call with its range argument exchanged; other arguments expanded as they are."""
        power = _POWERS.get(call.func)
        if power is None:
            raise ExpansionError(f"{call.func} over a canonical name is not supported: {call}")
        others = [self._node(a, ALL) if i != index else a for i, a in enumerate(call.args)]

        def apply(raw: VectorSelector) -> Expr:
            made: Expr = replace(argument, selector=raw) if isinstance(argument, MatrixSelector) else raw
            return replace(call, args=tuple(made if i == index else a for i, a in enumerate(others)))

        return Reading(apply, power)

    def _absent(self, call: Call) -> Expr:
        """absent is asked of the union, and keeps the labels that it takes from the selector's equality matchers."""
        inner = _unwrapped(call.args[0]) if call.args else call
        selector = inner.selector if isinstance(inner, MatrixSelector) else inner
        if not isinstance(selector, VectorSelector) or not self._is_canonical(selector):
            return self._children(call, NONE)
        reading = INSTANT
        if isinstance(inner, MatrixSelector):
            present = Call("present_over_time", (inner,))
            reading = self._reading(present, 0, inner)
        made = self._read(selector, reading, NONE)
        if made is None:
            return call
        absent: Expr = Call("absent", (made,))
        names = [m.name for m in selector.matchers]
        for matcher in selector.matchers:
            if matcher.op == "=" and names.count(matcher.name) == 1 and matcher.value:
                absent = set_label(absent, matcher.name, matcher.value)
        return absent

    def _read(self, selector: VectorSelector, reading: Reading, seen: Seen) -> Expr | None:
        """The inlined reading; None to leave the node as it is (a raw name, or canonical without a source: empty)."""
        if not self._is_canonical(selector):
            return None
        name = cast(str, selector.name)
        if not self.vocabulary.knows_series(name):
            raise ExpansionError(self.vocabulary.refusal(name), name)
        return inline(selector, self.rules.get(name, []), reading, seen)

    def _is_canonical(self, selector: VectorSelector) -> bool:
        for matcher in selector.matchers:
            if matcher.name == NAME and matcher.value.startswith(PREFIX):
                raise ExpansionError(f"{matcher}: canonical names cannot be chosen by a pattern; write the name itself")
        return selector.name is not None and selector.name.startswith(PREFIX)

    def _children(self, expr: Expr, seen: Seen) -> Expr:
        changed: dict[str, object] = {}
        for item in fields(expr):
            value = getattr(expr, item.name)
            if isinstance(value, Node):
                changed[item.name] = self._node(cast(Expr, value), seen)
            elif isinstance(value, tuple) and value and isinstance(value[0], Node):
                changed[item.name] = tuple(self._node(v, seen) for v in value)
        return replace(expr, **changed) if changed else expr  # type: ignore[arg-type]


def _unwrapped(expr: Expr) -> Expr:
    while isinstance(expr, Paren):
        expr = expr.expr
    return expr
