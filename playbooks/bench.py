"""The bench: every question asked once over all steps, for all members at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from playbooks.grid import Grid
from playbooks.middle import median
from playbooks.playbook import Test
from probes.labels import Labels

_KV_NAME = re.compile(r"\bkv:[a-zA-Z_][a-zA-Z0-9_:]*")
Member = Labels


class Answer(IntEnum):
    """Three-valued: no sample is not a no."""

    UNKNOWN = -1
    FALSE = 0
    TRUE = 1


class Rules(Protocol):
    """What the bench asks of the canonical layer."""

    def sources(self, name: str) -> list[str]: ...


class Asked(Protocol):
    """What the bench asks of a view: a range query that answers with a Vector, Scalar or String."""

    def range(self, text: str, start_ms: int, end_ms: int, step_ms: int) -> Any: ...


@dataclass(frozen=True)
class Table:
    """One expression over the steps: ``values`` is [S, K], NaN where there is no data."""

    labels: tuple[Labels, ...]
    values: NDArray[np.float64]

    def rows(self, member: Member) -> list[int]:
        """Rows that speak of a member: every label that both have must agree."""
        return [i for i, labels in enumerate(self.labels) if _agrees(labels, member)]


def _agrees(labels: Labels, member: Member) -> bool:
    return all(labels.get(name, value) == value for name, value in member)


@dataclass(frozen=True)
class Answered:
    """A test for one member: the three-valued answer and the value at each step ([K])."""

    test: Test
    answers: NDArray[np.int8]
    values: NDArray[np.float64]


class Bench:
    """Asks a view and remembers; one bench serves a whole diagnosis."""

    def __init__(self, view: Asked, grid: Grid, rules: Rules | None = None) -> None:
        self.view, self.grid, self.rules = view, grid, rules
        self._tables: dict[str, Table] = {}
        self._answers: dict[tuple[str, str, float, str | None, Member], Answered] = {}

    def table(self, expr: str) -> Table:
        """Values of an expression at every step; raises PromQLError for a broken one."""
        known = self._tables.get(expr)
        if known is None:
            known = self._tables[expr] = self._ask(expr, self.grid)
        return known

    def _ask(self, expr: str, grid: Grid) -> Table:
        times = grid.times
        value = self.view.range(grid.fill(expr), int(times[0]), int(times[-1]), grid.step_ms)
        if not hasattr(value, "labels"):
            row = np.asarray(value.values, dtype=np.float64).reshape(1, -1)
            return Table((Labels.of(),), row)
        # An infinite gauge or a division by nothing is no measurement either.
        values = np.where(value.present & np.isfinite(value.values), value.values, np.nan)
        return Table(tuple(value.labels), values)

    def answer(self, test: Test, member: Member) -> Answered:
        """Ask a test of a member. With several rows for a member the worst one speaks."""
        key = (test.expr, test.op, test.threshold, test.relative_to, member)
        known = self._answers.get(key)
        if known is None:
            known = self._answers[key] = self._answer(test, member)
        # Two playbooks may ask the same in other words: each keeps its own name, basis and sentence.
        return known if known.test is test else Answered(test, known.answers, known.values)

    def _answer(self, test: Test, member: Member) -> Answered:
        table = self.table(test.expr)
        values = table.values[table.rows(member)]
        if test.relative_to == "baseline":
            values = values / self._baseline(test, member, values)
        worst = _worst(values, test.op, len(self.grid.times))
        answers = np.where(np.isnan(worst), Answer.UNKNOWN, _compare(worst, test.op, test.threshold))
        return Answered(test, answers.astype(np.int8), worst)

    def _baseline(self, test: Test, member: Member, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Median of each row in the earlier part, [S, 1]; NaN (no answer) where there is none."""
        if self.grid.against_ms is not None:
            key = f"{test.expr} offset {self.grid.against_ms}"
            if key not in self._tables:
                self._tables[key] = self._ask(test.expr, self.grid.shifted(self.grid.against_ms))
            earlier = self._tables[key]
            past = earlier.values[earlier.rows(member)]
            merged = _median(past.reshape(1, -1))
            return np.repeat(merged, len(values), axis=0)
        mask = self.grid.baseline
        if mask is None:
            return np.full((len(values), 1), np.nan)
        return _median(values[:, mask])

    def members(
        self, exprs: Iterable[str], labels: tuple[str, ...], *, trailing: int | None = None, without: str = ""
    ) -> list[Member]:
        """Distinct members that any of the expressions speaks of (in the last ``trailing`` steps when given).

        Rows that have the label ``without`` speak of somebody else.
        """
        found: dict[Member, None] = {}
        for expr in exprs:
            table = self.table(expr)
            window = table.values if trailing is None else table.values[:, -trailing:]
            seen_rows = [not np.isnan(row).all() for row in window]
            for row, seen in zip(table.labels, seen_rows, strict=True):
                member = row.only(labels)
                if seen and member and not (without and row.get(without)):
                    found.setdefault(member)
        return sorted(found, key=str)

    def has(self, name: str, member: Member) -> bool:
        """True when a canonical signal has samples for a member anywhere in the window."""
        table = self.table(_presence(name))
        rows = table.rows(member)
        return bool(rows) and not np.isnan(table.values[rows]).all()

    def missing(self, test: Test, member: Member) -> tuple[str, ...]:
        """Signals of a test that are not there for a member: canonical names, each with the raw names that fill it."""
        gone: list[str] = []
        for name in signals(test.expr):
            if not self.has(name, member):
                gone.append(name)
                if self.rules is not None:
                    gone.extend(self.rules.sources(name))
        return tuple(dict.fromkeys(gone))


def signals(expr: str) -> tuple[str, ...]:
    """Canonical names in an expression, in order."""
    return tuple(dict.fromkeys(_KV_NAME.findall(expr)))


def _presence(name: str) -> str:
    return f"last_over_time({name}[$window])"


def _median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    out = np.full((len(values), 1), np.nan)
    for i, row in enumerate(values):
        kept = row[np.isfinite(row)]
        if len(kept) and median(kept) > 0:
            out[i, 0] = median(kept)
    return out


def _worst(values: NDArray[np.float64], op: str, steps: int) -> NDArray[np.float64]:
    if not len(values):
        return np.full(steps, np.nan)
    if len(values) == 1:
        return np.asarray(values[0])
    pick = np.fmin.reduce if op in ("<", "<=") else np.fmax.reduce
    return np.asarray(pick(values, axis=0))


def _compare(values: NDArray[np.float64], op: str, threshold: float) -> NDArray[np.bool_]:
    comparisons: Mapping[str, Any] = {
        ">": np.greater,
        ">=": np.greater_equal,
        "<": np.less,
        "<=": np.less_equal,
        "==": np.equal,
        "!=": np.not_equal,
    }
    with np.errstate(invalid="ignore"):
        return np.asarray(comparisons[op](values, threshold))
