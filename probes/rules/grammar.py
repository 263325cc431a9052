"""The canonical layer's grammar: ``or`` of ``[number * ] selector``, each perhaps in label_replace."""

from __future__ import annotations

import re

from probes.labels import NAME
from probes.promql.ast import Binary, Call, Expr, NumberLiteral, Paren, StringLiteral, VectorMatching, VectorSelector
from probes.rules.canonical import PREFIX
from probes.rules.errors import RuleError
from probes.rules.rule import Alternative, Relabel

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SHAPE = "a canonical rule is `[number * ] metric{…}`, perhaps in label_replace, joined by or"


def alternatives(expr: Expr) -> tuple[Alternative, ...]:
    """The alternatives of a rule's expression in order of preference; ``RuleError`` for any other shape."""
    if isinstance(expr, Paren):
        return alternatives(expr.expr)
    if isinstance(expr, Binary) and expr.op == "or":
        if expr.matching not in (None, VectorMatching()):
            raise RuleError("or takes no on/ignoring here: alternatives are told apart by all labels")
        return alternatives(expr.lhs) + alternatives(expr.rhs)
    return (_alternative(expr),)


def _alternative(expr: Expr) -> Alternative:
    scale = 1.0
    relabels: list[Relabel] = []
    while not isinstance(expr, VectorSelector):
        if isinstance(expr, Paren):
            expr = expr.expr
        elif isinstance(expr, Binary) and expr.op == "*" and isinstance(expr.lhs, NumberLiteral):
            scale *= expr.lhs.value
            expr = expr.rhs
        elif isinstance(expr, Call) and expr.func == "label_replace":
            relabels.append(_relabel(expr))
            expr = expr.args[0]
        else:
            raise RuleError(f"{_name_of(expr)} is not allowed: {_SHAPE}")
    if not 0 < scale < float("inf"):
        raise RuleError(f"the scale must be a positive number, not {NumberLiteral(scale)}")
    return Alternative(_selector(expr), scale, tuple(reversed(relabels)))


def _selector(selector: VectorSelector) -> VectorSelector:
    if selector.name is None:
        raise RuleError("a selector needs a metric name")
    if selector.name.startswith(PREFIX):
        raise RuleError(f"{selector.name} is canonical itself: name the engine's own series")
    if selector.offset_ms or selector.at is not None:
        raise RuleError("offset and @ are not allowed: whoever asks for the series sets them")
    return selector


def _relabel(call: Call) -> Relabel:
    texts = [a.value for a in call.args[1:] if isinstance(a, StringLiteral)]
    if len(texts) != 4:
        raise RuleError("label_replace takes a vector and four strings")
    target, replacement, source, regex = texts
    replacement = "$1" if replacement == "${1}" else replacement
    if target == NAME or not _LABEL.fullmatch(target):
        raise RuleError(f"label_replace cannot write {target or 'the empty label'} here: name an ordinary label")
    if replacement == "$1":
        if regex not in ("(.*)", "(.+)") or not source:
            raise RuleError(f'label_replace of "$1" takes (.*) or (.+) here, not {regex}: copy the whole label')
    elif "$" in replacement:
        raise RuleError(f'label_replace writes a constant or "$1" here, not {replacement}')
    elif not source and regex:
        raise RuleError('label_replace from no label takes the empty pattern: write "", ""')
    return Relabel(target, replacement, source, regex)


def _name_of(expr: Expr) -> str:
    if isinstance(expr, Call):
        return f"{expr.func}()"
    return f"`{expr.op}`" if isinstance(expr, Binary) else f"`{expr}`"
