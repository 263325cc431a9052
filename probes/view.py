"""What everybody else asks: a store, the canonical names, and the engine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import numpy as np

from probes.columns import Times
from probes.labels import Labels
from probes.promql.ast import Call, Expr, Matcher, VectorSelector, walk
from probes.promql.engine import Engine, Mode, steps
from probes.promql.parse import parse
from probes.promql.spans import close_spans, open_spans
from probes.promql.value import Scalar, Value, Vector
from probes.records import dataclass
from probes.rules.presence import instances
from probes.series import SeriesStore

_T = TypeVar("_T")
_EXPRESSIONS = 1024
_FROM_NOTHING = frozenset({"absent", "absent_over_time", "scalar", "vector"})
"""Functions with an answer where there is no series; those without an argument (``time()``) are of this kind, too."""


class Expanding(Protocol):
    """Canonical names inlined into an expression; ``probes.rules.RuleSet`` is one."""

    def expand(self, expr: Expr) -> Expr: ...


@dataclass(frozen=True, slots=True)
class RawInput:
    """A raw series behind a number: its newest sample at or before the moment asked for.

    ``value`` and ``age_ms`` are None when the window holds no sample of it up to then.
    """

    labels: Labels
    value: float | None
    age_ms: int | None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a number comes from.

    ``value`` is None when there is no such element. ``oldest_age_ms`` is the age of the input whose newest sample
    is the oldest; ``windows_ms`` lists the ranges of the expanded expression.
    """

    text: str
    expanded: str
    labels: Labels
    value: float | None
    inputs: tuple[RawInput, ...]
    oldest_age_ms: int | None
    windows_ms: tuple[int, ...]


class View:
    """PromQL over a store, canonical names included. One thread, that of the store's writer."""

    def __init__(
        self, store: SeriesStore, rules: Expanding | None = None, mode: Mode = "3", lookback_ms: int = 300_000
    ) -> None:
        self.store = store
        self.rules = rules
        self.engine = Engine(store, mode, lookback_ms)
        self._expressions: OrderedDict[str, tuple[Expr, str]] = OrderedDict()
        self._opened: OrderedDict[str, Expr] = OrderedDict()
        self._barren: OrderedDict[str, int] = OrderedDict()

    def expression(self, text: str) -> Expr:
        """Parsed and expanded, from a cache; PromQLError with a column for a bad expression."""
        return self._known(text)[0]

    def _known(self, text: str) -> tuple[Expr, str]:
        """The expression, and its text without its ranges (what is not stored does not depend on them)."""
        found = self._expressions.get(text)
        if found is None:
            found = _keep(self._expressions, text, self._read(text))
        return found

    def _read(self, text: str) -> tuple[Expr, str]:
        """Texts that differ in their ranges alone are read once."""
        opened = open_spans(text)
        if opened is None:
            return self._expanded(text), text
        plain, spans = opened
        try:
            found = self._opened.get(plain) or _keep(self._opened, plain, self._expanded(plain))
        except ValueError:  # said again, of the text as it was written
            return self._expanded(text), text
        return close_spans(found, spans), plain

    def _expanded(self, text: str) -> Expr:
        parsed = parse(text)
        return parsed if self.rules is None else self.rules.expand(parsed)

    def instant(self, text: str, at_ms: int, track: bool = False) -> Value:
        """The value of an expression at one time."""
        return self._evaluate(text, np.array([at_ms], dtype=np.int64), track)

    def range(self, text: str, start_ms: int, end_ms: int, step_ms: int, track: bool = False) -> Value:
        """The values of an expression from ``start_ms`` to ``end_ms``."""
        return self._evaluate(text, steps(start_ms, end_ms, step_ms), track)

    def sharing(self) -> AbstractContextManager[None]:
        """One round of questions, between two writes: what they have in common is evaluated once."""
        return self.engine.sharing()

    def _evaluate(self, text: str, times: Times, track: bool) -> Value:
        """What found no series at all finds none until one comes: most questions are for what an engine lacks."""
        expr, plain = self._known(text)
        version = self.store.version
        if self._barren.get(plain) == version:
            return Vector.empty(times, track)
        value = self.engine.evaluate(expr, times, track)
        if isinstance(value, Vector) and not value.labels and self._finds_nothing(expr):
            _keep(self._barren, plain, version)
        return value

    def _finds_nothing(self, expr: Expr) -> bool:
        matchers = _asked_for(expr)
        return bool(matchers) and not any(self.store.select(one) for one in matchers)

    def instances(self, series: str, at_ms: int, span_ms: int) -> frozenset[str] | None:
        """The instances with a sample of a canonical series in the last ``span_ms``; None when only a query can tell.

        Mode "2" windows, closed on the left, are left to the query.
        """
        rules_of = getattr(self.rules, "rules_of", None)
        if rules_of is None or self.engine.mode != "3":
            return None
        return instances(self.store, series, rules_of(series), at_ms, span_ms)

    def explain(self, text: str, at_ms: int, labels: Labels | Mapping[str, str] | None = None) -> Provenance:
        """Where the element with these labels comes from; None takes the first element.

        With a mapping, the first element whose labels cover it is meant.
        """
        expr = self.expression(text)
        value = self.engine.instant(expr, at_ms, track=True)
        found, behind, oldest, number = Labels.of(), frozenset[Labels](), None, None
        if isinstance(value, Scalar):
            behind, number = value.inputs, float(value.values[0])
            oldest = None if value.oldest is None else int(value.oldest[0])
        elif isinstance(value, Vector):
            row = _row(value, labels)
            if row is not None and value.inputs is not None and value.oldest is not None:
                found, behind = value.labels[row], value.inputs[row]
                number, oldest = float(value.values[row, 0]), int(value.oldest[row, 0])
        inputs = tuple(self._raw(series, at_ms) for series in sorted(behind, key=lambda one: one.pairs))
        age = None if oldest is None or not inputs else at_ms - oldest
        return Provenance(text, str(expr), found, number, inputs, age, _windows(expr))

    def _raw(self, labels: Labels, at_ms: int) -> RawInput:
        latest = self.store.latest(labels, at_ms)
        if latest is None:
            return RawInput(labels, None, None)
        return RawInput(labels, latest[1], at_ms - latest[0])


def _keep(cache: OrderedDict[str, _T], text: str, made: _T) -> _T:
    cache[text] = made
    if len(cache) > _EXPRESSIONS:
        cache.popitem(last=False)
    return made


def _asked_for(expr: Expr) -> list[tuple[Matcher, ...]]:
    """The matchers of all selectors; none where the answer may come from something else than series."""
    nodes = list(walk(expr))
    if any(isinstance(node, Call) and (not node.args or node.func in _FROM_NOTHING) for node in nodes):
        return []
    return [node.all_matchers for node in nodes if isinstance(node, VectorSelector)]


def _row(value: Vector, labels: Labels | Mapping[str, str] | None) -> int | None:
    wanted = labels.as_dict() if isinstance(labels, Labels) else dict(labels or {})
    return next((i for i, found in enumerate(value.labels) if value.present[i, 0] and found.covers(wanted)), None)


def _windows(expr: Expr) -> tuple[int, ...]:
    spans = {span for node in walk(expr) if (span := getattr(node, "range_ms", None)) is not None}
    return tuple(sorted(spans))
