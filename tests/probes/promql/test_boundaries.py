"""Where windows begin: Prometheus 3 leaves out a sample exactly at the start, Prometheus 2 takes it in.

Worked by hand from the migration guide of Prometheus 3 ("range selectors and lookback now exclude samples
coinciding with the left boundary") and its rule for extrapolation. One counter, 10, 20, … every 15 s: at t = 15 k
seconds it stands at 10 (k + 1).
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from probes.columns import blank
from probes.labels import Labels
from probes.promql.engine import Engine, Mode
from probes.promql.errors import PromQLError
from probes.promql.parse import parse
from probes.promql.value import Scalar, Vector
from probes.series import SeriesStore


def store_of(samples: dict[str, dict[float, float]]) -> SeriesStore:
    """Series by name; times in seconds."""
    store = SeriesStore()
    times = sorted({t for some in samples.values() for t in some})
    matrix = blank((len(samples), len(times)))
    for row, some in enumerate(samples.values()):
        for column, t in enumerate(times):
            if t in some:
                matrix[row, column] = some[t]
    axis = np.array([round(t * 1000) for t in times], dtype=np.int64)
    store.frame("test").load(axis, [Labels.of(name=name) for name in samples], matrix)
    return store


def ask(store: SeriesStore, text: str, at_s: float, mode: Mode = "3") -> float | None:
    """The only element's value, or None."""
    value = Engine(store, mode).instant(parse(text), round(at_s * 1000))
    if isinstance(value, Scalar):
        return float(value.values[0])
    assert isinstance(value, Vector)
    assert len(value.labels) <= 1
    return float(value.values[0, 0]) if value.labels else None


COUNTER = {15.0 * k: 10.0 * (k + 1) for k in range(41)}
TABLE = [
    # expression, at, Prometheus 3, Prometheus 2
    ("count_over_time(c[1m])", 600, 4, 5),
    ("count_over_time(c[1m])", 601, 4, 4),
    ("count_over_time(c[15s])", 600, 1, 2),
    ("count_over_time(c[14999ms])", 600, 1, 1),
    ("sum_over_time(c[30s])", 600, 410 + 400, 410 + 400 + 390),
    ("last_over_time(c[15s])", 600, 410, 410),
    # rate needs two samples: one interval holds two only where it is closed.
    ("rate(c[15s])", 600, None, 10 / 15),
    ("increase(c[15s])", 600, None, 10),
    # 3: samples at 555..600, 30 s..., first sample 15 s after the start, within 1.1 intervals: to the boundary.
    ("increase(c[1m])", 600, 40, 40),
    ("rate(c[1m])", 600, 40 / 60, 40 / 60),
    # at 605, samples 555..600 either way: 5 s to the end, 10 s to the start, 30 in 45 s.
    ("increase(c[1m])", 605, 40, 40),
    # lookback: the last sample lies at 600.
    ("c", 899.999, 410, 410),
    ("c", 900, None, 410),
    ("c", 900.001, None, None),
    # subquery steps are multiples of a minute; 300 is the excluded start.
    ("count_over_time(c[5m:1m])", 600, 5, 6),
    ("count_over_time(c[5m:])", 601, 5, 5),
    ("sum_over_time(c[2m:1m])", 600, 410 + 370, 410 + 370 + 330),
    ("changes(c[30s])", 600, 1, 2),
    ("delta(c[30s])", 600, 20, 20),
    ("idelta(c[15s])", 600, None, 10),
    ("absent_over_time(c[10s])", 610, 1, None),
    ("present_over_time(c[10s])", 610, None, 1),
    ("count_over_time(c[1m] offset 5m)", 900, 4, 5),
]


@pytest.mark.parametrize(("text", "at_s", "three", "two"), TABLE)
def test_left_boundary(text: str, at_s: float, three: float | None, two: float | None) -> None:
    store = store_of({"c": COUNTER})
    for mode, expected in (("3", three), ("2", two)):
        got = ask(store, text, at_s, "3" if mode == "3" else "2")
        assert got == (None if expected is None else pytest.approx(expected, rel=1e-12)), f"mode {mode}"


@pytest.mark.parametrize(
    ("first", "three", "two"),
    [
        # Three samples, 60 s apart, from 100 s after the start of [240s]; the rise is 20 in 120 s.
        # The start is beyond the threshold of 66 s: half an interval, 30 s, unless zero is nearer.
        (100.0, 20 * (120 + 30 + 20) / 120, 20 * (120 + 30 + 20) / 120),
        # Zero is 24 s before the first sample: both go there.
        (4.0, 20 * (120 + 24 + 20) / 120, 20 * (120 + 24 + 20) / 120),
        # Zero is 48 s before: 3 stops at half an interval, 2.42 takes the 48 s (below the threshold of 66 s).
        (8.0, 20 * (120 + 30 + 20) / 120, 20 * (120 + 48 + 20) / 120),
        # Zero is 72 s before, beyond the threshold: half an interval in both.
        (12.0, 20 * (120 + 30 + 20) / 120, 20 * (120 + 30 + 20) / 120),
    ],
)
def test_extrapolation_to_zero(first: float, three: float, two: float) -> None:
    store = store_of({"c": {1100: first, 1160: first + 10, 1220: first + 20}})
    assert ask(store, "increase(c[240s])", 1240, "3") == pytest.approx(three, rel=1e-12)
    assert ask(store, "increase(c[240s])", 1240, "2") == pytest.approx(two, rel=1e-12)


def test_other_differences_between_the_versions() -> None:
    store = store_of({"c": {100: math.inf}, "d": {100: 2.0}})
    assert ask(store, "stdvar(c)", 100, "2") == 0
    assert math.isnan(ask(store, "stdvar(c)", 100, "3") or 0)
    engine = {mode: Engine(store, mode) for mode in ("2", "3")}
    for mode, name in (("2", "d"), ("3", "")):
        value = engine[mode].instant(parse("d atan2 2"), 100_000)
        assert isinstance(value, Vector)
        assert value.labels[0].name == name


def test_a_mean_that_overflows() -> None:
    store = store_of({"c": {100: 1.7e308, 110: 1.7e308, 120: 1.7e308}})
    for mode in ("2", "3"):
        assert ask(store, "avg_over_time(c[1m])", 120, "2" if mode == "2" else "3") == pytest.approx(1.7e308)
    assert ask(store, "sum_over_time(c[1m])", 120) == math.inf


def test_sums_are_compensated() -> None:
    store = store_of({"c": {100: 1e16, 110: 1.0, 120: -1e16, 130: 1.0}})
    assert ask(store, "sum_over_time(c[1m])", 130) == 2
    many = store_of({f"s{n}": {100: v} for n, v in enumerate([1e16, 1.0, -1e16, 1.0])})
    assert ask(many, 'sum({__name__=~"s."})', 100) == 2


def test_at_and_offset() -> None:
    store = store_of({"c": COUNTER})
    assert ask(store, "c @ 300", 600) == 210
    assert ask(store, "c @ 300 offset 1m", 600) == 170
    assert ask(store, "c offset -1m", 540) == 410
    value = Engine(store).range(parse("c @ start() - c @ end()"), 300_000, 600_000, 150_000)
    assert isinstance(value, Vector)
    assert value.values.tolist() == [[-200.0, -200.0, -200.0]]


def test_lookback_and_default_step_are_options() -> None:
    store = store_of({"c": COUNTER})
    engine = Engine(store, lookback_ms=10_000, default_step_ms=30_000)
    short = engine.instant(parse("c"), 610_000)
    assert isinstance(short, Vector)
    assert len(short.labels) == 0
    steps = engine.instant(parse("count_over_time(c[5m:])"), 600_000)
    assert isinstance(steps, Vector)
    assert steps.values.tolist() == [[10.0]]


def test_bad_calls() -> None:
    engine = Engine(store_of({"c": COUNTER}))
    with pytest.raises(ValueError, match="step must be positive"):
        engine.range(parse("c"), 0, 1, 0)
    with pytest.raises(ValueError, match="before the start"):
        engine.range(parse("c"), 2, 1, 1)
    with pytest.raises(ValueError, match="no time"):
        engine.evaluate(parse("c"), np.array([], dtype=np.int64))
    with pytest.raises(ValueError, match="mode is"):
        Engine(SeriesStore(), "1")  # type: ignore[arg-type]
    with pytest.raises(PromQLError, match="range vector"):
        engine.range(parse("c[5m]"), 0, 1000, 500)
