"""An expression asked over a window that grows: parsed and expanded once, each range put in afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace

from probes.promql.ast import Expr, MatrixSelector, Node, Subquery

_RANGE = re.compile(r"\[([1-9]\d{0,8})(ms|s|m|h|d)\]")
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_QUOTES = re.compile(r"[\"'`#]")
# Stand-ins for ranges, in ms: nobody asks for these (46 days, and odd); the parser takes none beyond 2**32.
_FIRST_MARK = 4_000_000_001


def open_spans(text: str) -> tuple[str, Mapping[int, int]] | None:
    """The text with a stand-in for each range, and stand-in to range (ms).

    None where there is no plain range, or where brackets may stand within quotes or a comment.
    """
    if _QUOTES.search(text):
        return None
    marks: dict[int, int] = {}

    def mark(found: re.Match[str]) -> str:
        span_ms = int(found.group(1)) * _UNITS[found.group(2)]
        if span_ms >= _FIRST_MARK:
            return found.group()
        return f"[{marks.setdefault(span_ms, _FIRST_MARK + len(marks))}ms]"

    opened = _RANGE.sub(mark, text)
    return (opened, {number: span_ms for span_ms, number in marks.items()}) if marks else None


def close_spans(expr: Expr, spans: Mapping[int, int]) -> Expr:
    """The expression with the ranges for their stand-ins."""
    closed: Expr = _closed(expr, lambda ms: spans.get(ms, ms))  # type: ignore[assignment]
    return closed


def _closed(node: Node, span: Callable[[int], int]) -> Node:
    if isinstance(node, MatrixSelector):
        return MatrixSelector(node.selector, span(node.range_ms))
    changed: dict[str, object] = {}
    for item in fields(node):
        value = getattr(node, item.name)
        if isinstance(value, Node):
            made: object = _closed(value, span)
        elif isinstance(value, tuple) and value and isinstance(value[0], Node):
            made = tuple(_closed(one, span) for one in value)
        else:
            continue
        if made is not value:
            changed[item.name] = made
    if isinstance(node, Subquery):
        changed["range_ms"] = span(node.range_ms)
    return replace(node, **changed) if changed else node
