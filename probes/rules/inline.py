"""Replaces one canonical selector by its engines' series, whatever function reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from probes.labels import NAME
from probes.promql.ast import Binary, Call, Expr, Matcher, NumberLiteral, StringLiteral, VectorSelector
from probes.records import dataclass
from probes.rules.push import Matchers, push
from probes.rules.rule import Alternative, Relabel, Rule
from probes.rules.seen import Seen


@dataclass(frozen=True, slots=True)
class Reading:
    """How a selector is read: as it stands, or by a function that must reach the raw series.

    ``apply`` builds the reading of a raw selector; a scale ``s`` of the series becomes ``s ** power`` of the reading.
    """

    apply: Callable[[VectorSelector], Expr]
    power: int = 1


INSTANT = Reading(lambda selector: selector)


def inline(selector: VectorSelector, rules: Sequence[Rule], reading: Reading, seen: Seen) -> Expr | None:
    """The union over all rules of a canonical selector; None when no rule can fill it.

    Where the name is ``seen``, the result has the canonical one, as a recorded series has it. The labels that a rule
    sets tell its series from other rules'; one rule alone sets only those that are seen.
    """
    made = [(e, rule) for rule in rules if (e := _alternatives(selector, rule, reading)) is not None]
    if not made:
        return None
    unseen = {label for _, rule in made for label, _ in rule.labels if label not in seen} if len(made) == 1 else set()
    union = _union(_labelled(e, [(k, v) for k, v in rule.labels if k not in unseen]) for e, rule in made)
    return set_label(union, NAME, selector.name or "") if NAME in seen else union


def set_label(expr: Expr, label: str, value: str) -> Expr:
    """``expr`` with a label set on every series (an empty value removes it)."""
    return _relabelled(expr, Relabel(label, value))


def _alternatives(selector: VectorSelector, rule: Rule, reading: Reading) -> Expr | None:
    made = [
        _of_alternative(selector, alternative, matchers, reading)
        for outer in push(selector.matchers, [Relabel(label, value) for label, value in rule.labels])
        for alternative in rule.alternatives
        for matchers in push(outer, alternative.relabels)
    ]
    return _union(made) if made else None


def _labelled(expr: Expr, labels: Iterable[tuple[str, str]]) -> Expr:
    for label, value in labels:
        expr = set_label(expr, label, value)
    return expr


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
