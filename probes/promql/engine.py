"""The evaluator: an expression over a vector of steps; an instant query is one step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np

from probes.columns import Times
from probes.promql.aggregates import aggregate
from probes.promql.ast import (
    Aggregate,
    Binary,
    Call,
    Expr,
    MatrixSelector,
    NumberLiteral,
    Paren,
    StringLiteral,
    Subquery,
    Unary,
    VectorSelector,
)
from probes.promql.binary import binary
from probes.promql.context import Context, LabelCache, Selecting, Shared
from probes.promql.errors import PromQLError
from probes.promql.functions import call_function
from probes.promql.ranges import call_range
from probes.promql.selectors import select_instant, select_matrix
from probes.promql.settle import unnamed, with_values
from probes.promql.signatures import OVER_RANGE
from probes.promql.value import Scalar, String, Value, Vector

Mode = Literal["2", "3"]


class Engine:
    """PromQL over a store.

    ``mode`` "3" is Prometheus 3: ranges and the lookback leave out a sample exactly at their start; "2" takes it
    in, and follows 2.42 where else the two differ. One engine serves one thread.
    """

    def __init__(
        self, store: Selecting, mode: Mode = "3", lookback_ms: int = 300_000, default_step_ms: int = 60_000
    ) -> None:
        if mode not in ("2", "3"):
            raise ValueError(f"mode is '2' or '3', not {mode!r}")
        self.store = store
        self.mode = mode
        self.lookback_ms = lookback_ms
        self.default_step_ms = default_step_ms
        self._cache = LabelCache()
        self._shared: Shared | None = None

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """One round of questions: what several expressions have in common is evaluated once.

        Nothing may be written to the store meanwhile.
        """
        if self._shared is not None:
            yield
            return
        self._shared = {}
        try:
            yield
        finally:
            self._shared = None

    def evaluate(self, expr: Expr, times_ms: Times, track: bool = False) -> Value:
        """Evaluate at ``times_ms`` [K], ascending. PromQLError for what Prometheus refuses while it runs."""
        times = np.ascontiguousarray(times_ms, dtype=np.int64)
        if not times.size:
            raise ValueError("no time to evaluate at")
        ctx = Context(
            store=self.store,
            closed=self.mode == "2",
            lookback_ms=self.lookback_ms,
            default_step_ms=self.default_step_ms,
            start_ms=int(times[0]),
            end_ms=int(times[-1]),
            track=track,
            cache=self._cache,
            evaluate=_evaluate,
            shared=None if track else self._shared,
        )
        # Markers are signalling NaNs, and Go does arithmetic without warnings.
        try:
            with np.errstate(all="ignore"):
                return _evaluate(ctx, expr, times)
        except RecursionError:
            raise PromQLError("the expression has too many operators in a row or is nested too deeply") from None

    def instant(self, expr: Expr, at_ms: int, track: bool = False) -> Value:
        """One step."""
        return self.evaluate(expr, np.array([at_ms], dtype=np.int64), track)

    def range(self, expr: Expr, start_ms: int, end_ms: int, step_ms: int, track: bool = False) -> Value:
        """Steps from ``start_ms`` to ``end_ms``, both included where the step hits them."""
        return self.evaluate(expr, steps(start_ms, end_ms, step_ms), track)


def steps(start_ms: int, end_ms: int, step_ms: int) -> Times:
    """The moments from ``start_ms`` to ``end_ms``, both included where the step hits them."""
    if step_ms <= 0:
        raise ValueError("the step must be positive")
    if end_ms < start_ms:
        raise ValueError("the end lies before the start")
    return np.arange(start_ms, end_ms + 1, step_ms, dtype=np.int64)


def _evaluate(ctx: Context, expr: Expr, times: Times) -> Value:
    shared = ctx.shared
    if shared is None or not isinstance(expr, Call | Aggregate | Binary):
        return _afresh(ctx, expr, times)
    key = (expr, ctx.start_ms, ctx.end_ms, int(times[0]), int(times[-1]), times.size)
    found = shared.get(key)
    if found is None:
        found = shared[key] = _afresh(ctx, expr, times)
    return found


def _afresh(ctx: Context, expr: Expr, times: Times) -> Value:
    match expr:
        case NumberLiteral(value):
            return Scalar(times, np.full(times.size, value))
        case StringLiteral(value):
            return String(value)
        case Paren(inner):
            return ctx.eval(inner, times)
        case VectorSelector():
            return select_instant(ctx, expr, times)[0]
        case Call(func):
            return call_range(ctx, expr, times) if func in OVER_RANGE else call_function(ctx, expr, times)
        case Aggregate():
            return aggregate(ctx, expr, times)
        case Binary():
            return binary(ctx, expr, times)
        case Unary(inner):
            return _negated(ctx, ctx.eval(inner, times))
        case MatrixSelector() | Subquery():
            if times.size > 1:
                raise PromQLError(
                    'invalid expression type "range vector" for range query, must be Scalar or instant Vector'
                )
            return select_matrix(ctx, expr, times)


def _negated(ctx: Context, value: Value) -> Value:
    if isinstance(value, Scalar):
        return Scalar(value.times, -value.values, value.oldest, value.inputs)
    if isinstance(value, Vector):
        return unnamed(ctx, with_values(value, -value.values))
    raise PromQLError("a minus needs a number or an instant vector")
