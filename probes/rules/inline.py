"""Replaces one canonical selector by its engines' series, whatever function reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from probes.labels import NAME
from probes.promql.ast import Binary, Call, Expr, Matcher, NumberLiteral, StringLiteral, VectorSelector
from probes.rules.push import Matchers, push
from probes.rules.rule import Alternative, Relabel, Rule


@dataclass(frozen=True, slots=True)
class Reading:
    """How a selector is read: as it stands, or by a function that must reach the raw series.

    ``apply`` builds the reading of a raw selector; a scale ``s`` of the series becomes ``s ** power`` of the reading.
    """

    apply: Callable[[VectorSelector], Expr]
    power: int = 1


INSTANT = Reading(lambda selector: selector)


def inline(selector: VectorSelector, rules: Sequence[Rule], reading: Reading, named: bool) -> Expr | None:
    """The union over all rules of a canonical selector; None when no rule can fill it.

    ``named`` gives the result the canonical name, as a recorded series has it.
    """
    made = [e for rule in rules if (e := _of_rule(selector, rule, reading)) is not None]
    if not made:
        return None
    union = _union(made)
    return set_label(union, NAME, selector.name or "") if named else union


def set_label(expr: Expr, label: str, value: str) -> Expr:
    """``expr`` with a label set on every series (an empty value removes it)."""
    return _relabelled(expr, Relabel(label, value))


def _of_rule(selector: VectorSelector, rule: Rule, reading: Reading) -> Expr | None:
    static = [Relabel(label, value) for label, value in rule.labels]
    made = [
        _of_alternative(selector, alternative, matchers, reading)
        for outer in push(selector.matchers, static)
        for alternative in rule.alternatives
        for matchers in push(outer, alternative.relabels)
    ]
    if not made:
        return None
    union = _union(made)
    for relabel in static:
        union = _relabelled(union, relabel)
    return union


def _of_alternative(selector: VectorSelector, alternative: Alternative, pushed: Matchers, reading: Reading) -> Expr:
    raw = alternative.selector
    matchers: tuple[Matcher, ...] = tuple(dict.fromkeys((*raw.matchers, *pushed)))
    made = reading.apply(replace(selector, name=raw.name, matchers=matchers))
    scale = alternative.scale**reading.power
    if scale != 1:
        made = Binary("*", NumberLiteral(scale), made)
    for relabel in alternative.relabels:
        made = _relabelled(made, relabel)
    return made


def _relabelled(expr: Expr, relabel: Relabel) -> Expr:
    texts = (relabel.target, relabel.replacement, relabel.source, relabel.regex)
    return Call("label_replace", (expr, *map(StringLiteral, texts)))


def _union(parts: Iterable[Expr]) -> Expr:
    first, *others = parts
    for other in others:
        first = Binary("or", first, other)
    return first
