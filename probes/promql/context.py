"""What every part of the evaluator is handed: the store, the semantics, and the label caches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import field
from typing import Any, Protocol, TypeAlias, TypeVar

from probes.columns import Times
from probes.promql.ast import Expr, Matcher
from probes.promql.value import Value
from probes.records import dataclass
from probes.series import Selection

_T = TypeVar("_T")


class Selecting(Protocol):
    """A store as the evaluator sees it."""

    def select(self, matchers: Sequence[Matcher]) -> list[Selection]: ...


class LabelCache:
    """Answers that depend on label sets alone (groups, joins, stripped names), least recently used dropped.

    Keys are tuples of interned label sets: between two ticks of a screen they are the same objects.
    """

    def __init__(self, size: int = 512) -> None:
        self._size = size
        self._known: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        found: _T
        try:
            found = self._known[key]
        except KeyError:
            found = self._known[key] = make()
            if len(self._known) > self._size:
                self._known.popitem(last=False)
            return found
        self._known.move_to_end(key)
        return found


Shared: TypeAlias = dict[tuple[Expr, int, int, int, int, int], Value]
"""Answers within one round: expression, bounds of the evaluation, first and last step and their number."""


@dataclass(frozen=True)
class Context:
    """One evaluation. ``closed``: Prometheus 2 windows, closed on the left; else Prometheus 3, left-open."""

    store: Selecting
    closed: bool
    lookback_ms: int
    default_step_ms: int
    start_ms: int
    end_ms: int
    track: bool
    cache: LabelCache
    evaluate: Callable[[Context, Expr, Times], Value] = field(repr=False)
    shared: Shared | None = field(default=None, repr=False)

    def eval(self, expr: Expr, times: Times) -> Value:
        return self.evaluate(self, expr, times)
