"""What everybody else asks: a store, the canonical names, and the engine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from probes.labels import Labels
from probes.promql.ast import Expr, walk
from probes.promql.engine import Engine, Mode
from probes.promql.parse import parse
from probes.promql.value import Scalar, Value, Vector
from probes.series import SeriesStore

_EXPRESSIONS = 1024


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
        self._expressions: OrderedDict[str, Expr] = OrderedDict()

    def expression(self, text: str) -> Expr:
        """Parsed and expanded, from a cache; PromQLError with a column for a bad expression."""
        found = self._expressions.get(text)
        if found is None:
            parsed = parse(text)
            found = parsed if self.rules is None else self.rules.expand(parsed)
            self._expressions[text] = found
            if len(self._expressions) > _EXPRESSIONS:
                self._expressions.popitem(last=False)
        return found

    def instant(self, text: str, at_ms: int, track: bool = False) -> Value:
        """The value of an expression at one time."""
        return self.engine.instant(self.expression(text), at_ms, track)

    def range(self, text: str, start_ms: int, end_ms: int, step_ms: int, track: bool = False) -> Value:
        """The values of an expression from ``start_ms`` to ``end_ms``."""
        return self.engine.range(self.expression(text), start_ms, end_ms, step_ms, track)

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


def _row(value: Vector, labels: Labels | Mapping[str, str] | None) -> int | None:
    wanted = labels.as_dict() if isinstance(labels, Labels) else dict(labels or {})
    return next((i for i, found in enumerate(value.labels) if value.present[i, 0] and found.covers(wanted)), None)


def _windows(expr: Expr) -> tuple[int, ...]:
    spans = {span for node in walk(expr) if (span := getattr(node, "range_ms", None)) is not None}
    return tuple(sorted(spans))
