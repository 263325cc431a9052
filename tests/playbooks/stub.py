"""Stand-ins for pure logic: a view that answers from a table, and playbooks made of a few words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from playbooks.bench import Answer, Bench
from playbooks.decide import Ruling, rule
from playbooks.grid import Grid
from playbooks.playbook import Pattern, Playbook, Refuter, Test
from playbooks.verdict import Verdict
from probes.labels import Labels

START_MS = 1_790_000_000_000
INTERVAL_MS = 5_000
GRID = Grid(START_MS, START_MS + 300_000, INTERVAL_MS)
POD = Labels.of({"instance": "pod-1:8000", "engine": "0"})
OTHER = Labels.of({"instance": "pod-2:8000", "engine": "0"})
NAN = float("nan")

Curve = Callable[[float], float]
"""Value at a number of seconds from the start; NaN where there is no sample."""

_PRESENCE = re.compile(r"last_over_time\((.+)\[[^\]]*\]\)")
_YES_NO = {"y": Answer.TRUE, "n": Answer.FALSE, "?": Answer.UNKNOWN}


@dataclass(frozen=True)
class Rows:
    """What the bench reads of a vector."""

    labels: tuple[Labels, ...]
    values: NDArray[np.float64]
    present: NDArray[np.bool_]


@dataclass
class StubView:
    """``series`` gives each expression its rows; an expression that is not in it has no data."""

    series: Mapping[str, Mapping[Labels, Curve | float]]
    asked: list[str] = field(default_factory=list)

    def range(self, text: str, start_ms: int, end_ms: int, step_ms: int) -> Rows:
        self.asked.append(text)
        known = self.series.get(text)
        if known is None:
            match = _PRESENCE.fullmatch(text)
            known = self.series.get(match[1], {}) if match else {}
        times = np.arange(start_ms, end_ms + 1, step_ms)
        table = np.array([[_at(curve, int(t)) for t in times] for curve in known.values()], dtype=np.float64)
        table = table.reshape(len(known), len(times))
        return Rows(tuple(known), table, ~np.isnan(table))


def _at(curve: Curve | float, time_ms: int) -> float:
    return float(curve((time_ms - START_MS) / 1000)) if callable(curve) else float(curve)


def after(seconds: float, value: float = 1.0, before: float = 0.0) -> Curve:
    """``before`` until then, ``value`` from then on."""
    return lambda t: value if t >= seconds else before


def during(first: float, last: float) -> Curve:
    """1 from ``first`` to ``last`` seconds, else 0."""
    return lambda t: 1.0 if first <= t <= last else 0.0


def answers(text: str) -> NDArray[np.int8]:
    """``"yn?"`` as answers."""
    return np.array([_YES_NO[c] for c in text], dtype=np.int8)


def ask(name: str, basis: str = "physical", **more: object) -> Test:
    """The test ``name >= 1``."""
    fields: dict[str, object] = {"op": ">=", "threshold": 1.0, "source": "made up", "says": f"{name} is {{value:.1f}}"}
    return Test(name=name, expr=name, basis=basis, **{**fields, **more})  # type: ignore[arg-type]


def pattern(*requires: str, refutes: Mapping[str, str] | None = None, **more: object) -> Pattern:
    """A pattern on engines; ``refutes`` maps a test to the look-alike that it means."""
    against = tuple(Refuter(name, means) for name, means in (refutes or {}).items())
    return Pattern(**{"id": "only", "scope": "engine", "requires": requires, "refutes": against, **more})  # type: ignore[arg-type]


def playbook(cause: str, tests: Sequence[Test], *patterns: Pattern, **more: object) -> Playbook:
    fields: dict[str, object] = {
        "title": f"The title of {cause}", "summary": "made up", "severity": "warning", "explains": (),
        "explains_elsewhere": (), "cost": (), "what_if": (), "remedies": ("do something",), "confirm": (),
        "alert": None, "fixtures": {},
    }  # fmt: skip
    return Playbook(id=cause, tests={t.name: t for t in tests}, patterns=patterns, **{**fields, **more})  # type: ignore[arg-type]


def decide(
    tests: Sequence[Test], one: Pattern, series: Mapping[str, Mapping[Labels, Curve | float]], member: Labels = POD
) -> Ruling:
    """Rule one pattern for one member on a stub view."""
    view = StubView(series)
    return rule(playbook("pool-leak", tests, one), one, member, Bench(view, GRID), Bench(view, GRID.finer()))


def ruling(
    cause: str,
    member: Labels = POD,
    *,
    verdict: Verdict = Verdict.LIKELY,
    onset_s: float | None = None,
    ended_s: float | None = None,
    **more: object,
) -> Ruling:
    """A ruling as it comes out of ``decide``; ``more`` goes to the playbook."""
    made = playbook(cause, [ask("t")], pattern("t"), **more)
    onset = None if onset_s is None else START_MS + int(onset_s * 1000)
    ended = None if ended_s is None else START_MS + int(ended_s * 1000)
    return Ruling(made, made.patterns[0], member, verdict, onset_ms=onset, ended_ms=ended)
