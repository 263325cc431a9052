"""The vectorised evaluator against plain loops over one series at a time, and the rules of matching and naming."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.columns import ABSENT, STALE, is_sample
from probes.labels import Labels
from probes.promql import selectors
from probes.promql.engine import Engine
from probes.promql.errors import PromQLError
from probes.promql.histogram import bucket_quantile
from probes.promql.parse import parse
from probes.promql.value import Scalar, String, Vector
from probes.series import SeriesStore

Samples = list[tuple[int, float]]


def load(rows: dict[str, Sequence[float]], times: Sequence[int]) -> SeriesStore:
    """A store with these series (written as PromQL selectors) on one axis, ms."""
    store = SeriesStore()
    labels = []
    for text in rows:
        node = parse(text)
        labels.append(Labels.of({m.name: m.value for m in node.matchers}, node.name))  # type: ignore[union-attr]
    matrix = np.array([list(row) for row in rows.values()], dtype=np.float64).reshape(len(rows), len(times))
    store.frame("test").load(np.array(times, dtype=np.int64), labels, matrix)
    return store


def instant(store: SeriesStore, text: str, at_ms: int) -> dict[str, float]:
    value = Engine(store).instant(parse(text), at_ms)
    assert isinstance(value, Vector)
    assert value.present.all()
    return {str(labels): float(v) for labels, v in zip(value.labels, value.values[:, 0], strict=True)}


# --- plain versions of range functions -----------------------------------------------------------------------


def _rate(samples: Samples, start: int, end: int) -> float | None:
    if len(samples) < 2:
        return None
    rise = samples[-1][1] - samples[0][1]
    for (_, before), (_, after) in pairwise(samples):
        rise += before if after < before else 0
    covered = (samples[-1][0] - samples[0][0]) / 1000
    average = covered / (len(samples) - 1)
    head, tail = (samples[0][0] - start) / 1000, (end - samples[-1][0]) / 1000
    head = head if head < average * 1.1 else average / 2
    if rise > 0 and samples[0][1] >= 0:
        head = min(head, covered * (samples[0][1] / rise))
    tail = tail if tail < average * 1.1 else average / 2
    return rise * ((covered + head + tail) / covered) / ((end - start) / 1000)


def _values(samples: Samples) -> list[float]:
    return [v for _, v in samples]


PLAIN = {
    "rate": _rate,
    "count_over_time": lambda s, a, b: float(len(s)) if s else None,
    "sum_over_time": lambda s, a, b: math.fsum(_values(s)) if s else None,
    "avg_over_time": lambda s, a, b: math.fsum(_values(s)) / len(s) if s else None,
    "min_over_time": lambda s, a, b: min(_values(s)) if s else None,
    "max_over_time": lambda s, a, b: max(_values(s)) if s else None,
    "last_over_time": lambda s, a, b: s[-1][1] if s else None,
    "changes": lambda s, a, b: float(sum(x != y for (_, x), (_, y) in pairwise(s))) if s else None,
    "resets": lambda s, a, b: float(sum(y < x for (_, x), (_, y) in pairwise(s))) if s else None,
    "idelta": lambda s, a, b: s[-1][1] - s[-2][1] if len(s) > 1 else None,
    "quantile_over_time": lambda s, a, b: float(np.quantile(_values(s), 0.3)) if s else None,
}

_cell = st.one_of(
    st.sampled_from([ABSENT, STALE]), *[st.integers(0, 50).map(float) for _ in range(4)], st.floats(0, 1e6)
)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.integers(1, 90), min_size=1, max_size=30),
    st.integers(1, 4),
    st.sampled_from(sorted(PLAIN)),
    st.sampled_from([7, 30, 61, 200]),
    st.data(),
)
def test_range_functions_agree_with_loops(
    gaps: list[int], series: int, name: str, range_s: int, data: st.DataObject
) -> None:
    times = (np.cumsum(gaps) * 1000).tolist()
    cells = st.lists(_cell, min_size=len(times), max_size=len(times))
    rows = {f'm{{n="{n}"}}': data.draw(cells) for n in range(series)}
    store = load(rows, times)
    steps = np.array(sorted(data.draw(st.sets(st.integers(0, times[-1] + 60_000), min_size=1, max_size=8))))
    prefix = "0.3, " if name.startswith("quantile") else ""
    value = Engine(store).evaluate(parse(f"{name}({prefix}m[{range_s}s])"), steps)
    assert isinstance(value, Vector)
    for n in range(series):
        row = next((i for i, found in enumerate(value.labels) if found.get("n") == str(n)), None)
        kept = [(t, v) for t, v in zip(times, rows[f'm{{n="{n}"}}'], strict=True) if is_sample(np.array([v]))[0]]
        for step, at in enumerate(steps.tolist()):
            start = at - range_s * 1000
            expected = PLAIN[name]([(t, v) for t, v in kept if start < t <= at], start, at)
            got = None if row is None or not value.present[row, step] else float(value.values[row, step])
            assert got == (None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-12))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=40), st.integers(1, 4), st.data())
def test_instant_selection_agrees_with_loops(gaps: list[int], series: int, data: st.DataObject) -> None:
    times = (np.cumsum(gaps) * 1000).tolist()
    cells = st.lists(_cell, min_size=len(times), max_size=len(times))
    rows = {f'm{{n="{n}"}}': data.draw(cells) for n in range(series)}
    engine = Engine(load(rows, times))
    steps = np.array(sorted(data.draw(st.sets(st.integers(0, times[-1] + 400_000), min_size=1, max_size=8))))
    together = engine.evaluate(parse("m"), steps)
    assert isinstance(together, Vector)
    for step, at in enumerate(steps.tolist()):
        alone = engine.instant(parse("m"), at)
        assert isinstance(alone, Vector)
        found = dict(zip(alone.labels, alone.values[:, 0].tolist(), strict=True))
        expected = {}
        for n, row in enumerate(rows.values()):
            seen = [(t, v) for t, v in zip(times, row, strict=True) if at - 300_000 < t <= at and v is not ABSENT]
            seen = [(t, v) for t, v in seen if np.array([v]).view(np.int64)[0] != np.array([ABSENT]).view(np.int64)[0]]
            if seen and is_sample(np.array([seen[-1][1]]))[0]:
                expected[Labels.of({"n": str(n)}, "m")] = seen[-1][1]
        assert found == expected
        here = {
            labels: float(together.values[i, step])
            for i, labels in enumerate(together.labels)
            if together.present[i, step]
        }
        assert here == expected


@pytest.mark.parametrize(
    "text", ["m", "rate(m[1m])", "timestamp(m)", "sum_over_time(m[30s] @ 100)", "absent_over_time(m[5s])"]
)
def test_many_steps_are_evaluated_in_parts_with_the_same_answer(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {'m{n="1"}': [float(t) for t in range(60)], 'm{n="2"}': [ABSENT] * 30 + [1.0] * 10 + [STALE] + [2.0] * 19}
    engine = Engine(load(rows, [10_000 * t for t in range(60)]))
    whole = engine.range(parse(text), 0, 900_000, 7_000, track=True)
    monkeypatch.setattr(selectors, "_MOST_CELLS", 40)
    parts = engine.range(parse(text), 0, 900_000, 7_000, track=True)
    assert isinstance(whole, Vector)
    assert isinstance(parts, Vector)
    assert parts.labels == whole.labels
    assert parts.inputs == whole.inputs
    assert np.array_equal(parts.present, whole.present)
    assert np.array_equal(parts.values[whole.present], whole.values[whole.present])
    assert parts.oldest is not None
    assert whole.oldest is not None
    assert np.array_equal(parts.oldest[whole.present], whole.oldest[whole.present])


# --- staleness -----------------------------------------------------------------------------------------------


def test_a_stale_series_is_gone_at_once_and_back_when_it_is_back() -> None:
    store = SeriesStore()
    frame = store.frame("a")
    one, two = (frame.row(Labels.of({"n": n}, "m")) for n in ("1", "2"))
    frame.append(10_000, [one, two], [1.0, 2.0])
    frame.append(20_000, [one], [1.0])
    frame.append(30_000, [one], [1.0])
    frame.append(40_000, [one, two], [1.0, 5.0])
    frame.expire(50_000)
    assert instant(store, "m", 19_999) == {'m{n="1"}': 1, 'm{n="2"}': 2}
    assert instant(store, "m", 20_000) == {'m{n="1"}': 1}
    assert instant(store, "m", 39_000) == {'m{n="1"}': 1}
    assert instant(store, "m", 49_999) == {'m{n="1"}': 1, 'm{n="2"}': 5}
    assert instant(store, "m", 50_000) == {}
    assert instant(store, "count_over_time(m[1m])", 55_000) == {'{n="1"}': 4, '{n="2"}': 2}
    assert instant(store, "last_over_time(m[1m])", 55_000) == {'m{n="1"}': 1, 'm{n="2"}': 5}
    assert instant(store, "absent(m)", 50_000) == {"{}": 1}
    assert instant(store, "max_over_time(m[40s:5s])", 55_000) == {'{n="1"}': 1, '{n="2"}': 5}


def test_nan_is_a_value_not_an_absence() -> None:
    store = load({"m": [math.nan, 1.0], "k": [1.0, math.nan]}, [1000, 2000])
    assert instant(store, "count(k)", 2000) == {"{}": 1}
    assert math.isnan(instant(store, "k", 2000)["k"])
    assert instant(store, "absent(k)", 2000) == {}
    assert instant(store, "count_over_time(m[1m])", 2000) == {"{}": 2}
    assert instant(store, "max_over_time(m[1m])", 2000) == {"{}": 1}


# --- matching ------------------------------------------------------------------------------------------------

FLEET = {
    'used{instance="a",gpu="0"}': [1.0],
    'used{instance="a",gpu="1"}': [2.0],
    'used{instance="b",gpu="0"}': [3.0],
    'cap{instance="a"}': [10.0],
    'cap{instance="b"}': [20.0],
    'info{instance="a",model="x"}': [1.0],
    'info{instance="b",model="y"}': [1.0],
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("used / on (instance) group_left cap", {("a", "0"): 0.1, ("a", "1"): 0.2, ("b", "0"): 0.15}),
        ("cap - on (instance) group_right used", {("a", "0"): 9, ("a", "1"): 8, ("b", "0"): 17}),
        ("used and on (instance) cap > 10", {("b", "0"): 3}),
        ("used unless on (instance) (cap > 10)", {("a", "0"): 1, ("a", "1"): 2}),
        ('used{instance="a"} or used', {("a", "0"): 1, ("a", "1"): 2, ("b", "0"): 3}),
        ("used > 1", {("a", "1"): 2, ("b", "0"): 3}),
        ("2 > used", {("a", "0"): 1}),
        ("used > bool 1", {("a", "0"): 0, ("a", "1"): 1, ("b", "0"): 1}),
        ("used < on (instance) group_left () (cap / 6)", {("a", "0"): 1, ("b", "0"): 3}),
    ],
)
def test_matching(text: str, expected: dict[tuple[str, str], float]) -> None:
    value = Engine(load(FLEET, [1000])).instant(parse(text), 1000)
    assert isinstance(value, Vector)
    got = {(f.get("instance"), f.get("gpu")): v for f, v in zip(value.labels, value.values[:, 0], strict=True)}
    assert got == pytest.approx(expected)


def test_names_and_included_labels() -> None:
    store = load(FLEET, [1000])
    assert instant(store, "used * on (instance) group_left (model) info", 1000) == {
        '{gpu="0",instance="a",model="x"}': 1,
        '{gpu="1",instance="a",model="x"}': 2,
        '{gpu="0",instance="b",model="y"}': 3,
    }
    assert set(instant(store, "used > 2", 1000)) == {'used{gpu="0",instance="b"}'}
    assert set(instant(store, "cap == ignoring (x) cap", 1000)) == {'cap{instance="a"}', 'cap{instance="b"}'}
    assert set(instant(store, "cap + on (instance) cap", 1000)) == {'{instance="a"}', '{instance="b"}'}
    assert set(instant(store, "sum by (__name__) (cap)", 1000)) == {"cap"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cap / on (instance) used", "many-to-many matching not allowed"),
        ("used * on () group_left info", "many-to-many matching not allowed"),
        ("info * on () group_right used", "on the left hand-side"),
        ("used / on (instance) cap", "many-to-one matching must be explicit"),
        ("used * on (instance) group_left (gpu) cap", "grouping labels must ensure unique matches"),
        ('label_replace(used, "gpu", "0", "", "")', "same labelset"),
        ('label_replace(used, "9", "0", "", "")', "invalid destination label"),
        ("topk(NaN, used)", "overflows"),
    ],
)
def test_refusals(text: str, says: str) -> None:
    engine = Engine(load(FLEET, [1000]))
    with pytest.raises(PromQLError, match=says):
        engine.instant(parse(text), 1000)


def test_series_that_share_a_name_less_label_set() -> None:
    store = load({'a{x="1"}': [1.0, 2.0], 'b{x="1"}': [1.0, 2.0]}, [1000, 2000])
    for text in ('{__name__=~"a|b"} * 2', 'rate({__name__=~"a|b"}[5m])', '-{__name__=~"a|b"}', 'abs({x="1"})'):
        with pytest.raises(PromQLError, match="same labelset"):
            Engine(store).instant(parse(text), 2000)


def test_rows_that_never_meet_become_one() -> None:
    """A series that changes its name between two steps is one result series after the name is dropped."""
    store = load({'a{x="1"}': [1.0, STALE], 'b{x="1"}': [ABSENT, 2.0]}, [1000, 2000])
    value = Engine(store).range(parse('{__name__=~"a|b"} * 10'), 1000, 2000, 1000)
    assert isinstance(value, Vector)
    assert [str(one) for one in value.labels] == ['{x="1"}']
    assert value.values.tolist() == [[10.0, 20.0]]
    both = Engine(store).range(parse("a * 10 or b * 10"), 1000, 2000, 1000)
    assert isinstance(both, Vector)
    assert both.values.tolist() == [[10.0, 20.0]]


# --- the rest ------------------------------------------------------------------------------------------------


def test_topk_at_each_step_and_sorted_at_one() -> None:
    store = load({f'm{{n="{n}"}}': [n, 5 - n] for n in range(5)}, [1000, 2000])
    assert list(instant(store, "topk(2, m)", 1000)) == ['m{n="4"}', 'm{n="3"}']
    assert list(instant(store, "bottomk(2, m)", 1000)) == ['m{n="0"}', 'm{n="1"}']
    assert list(instant(store, "sort_desc(m)", 1000).values()) == [4, 3, 2, 1, 0]
    value = Engine(store).range(parse("topk(1, m)"), 1000, 2000, 1000)
    assert isinstance(value, Vector)
    assert {f.get("n"): p for f, p in zip(value.labels, value.present.tolist(), strict=True)} == {
        "4": [True, False],
        "0": [False, True],
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1 + 2 * 3", 7.0), ("-2 ^ 2", -4.0), ("2 > bool 1", 1.0), ("time()", 1.0), ("scalar(nosuch)", math.nan)],
)
def test_scalars(text: str, expected: float) -> None:
    value = Engine(load(FLEET, [1000])).instant(parse(text), 1000)
    assert isinstance(value, Scalar)
    assert float(value.values[0]) == pytest.approx(expected, nan_ok=True)


def test_string() -> None:
    assert Engine(SeriesStore()).instant(parse('"a\\tb"'), 0) == String("a\tb")


# --- histograms ----------------------------------------------------------------------------------------------


def _plain_quantile(q: float, buckets: list[tuple[float, float]], tolerant: bool) -> float:
    if math.isnan(q):
        return math.nan
    if q < 0 or q > 1:
        return math.copysign(math.inf, q)
    merged: list[list[float]] = []
    for bound, count in sorted(buckets):
        if merged and merged[-1][0] == bound:
            merged[-1][1] += count
        else:
            merged.append([bound, count])
    if merged[-1][0] != math.inf:
        return math.nan
    for before, here in pairwise(merged):
        close = tolerant and abs(before[1] - here[1]) < 1e-12 * (before[1] + here[1])
        if here[1] < before[1] or close:
            here[1] = before[1]
    if len(merged) < 2 or merged[-1][1] == 0:
        return math.nan
    rank = q * merged[-1][1]
    at = next((i for i, (_, count) in enumerate(merged[:-1]) if count >= rank), len(merged) - 1)
    if at == len(merged) - 1:
        return merged[-2][0]
    if at == 0 and merged[0][0] <= 0:
        return merged[0][0]
    low, under = merged[at - 1] if at else (0.0, 0.0)
    count = merged[at][1] - under
    return low + (merged[at][0] - low) * ((rank - under) / count) if count else math.nan


@settings(max_examples=300, deadline=None)
@given(
    st.floats(-0.2, 1.2) | st.sampled_from([0.0, 0.5, 1.0, math.nan]),
    st.lists(
        st.tuples(
            st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.5, 10.0, math.inf]),
            st.integers(0, 20).map(float) | st.sampled_from([1.0, 1.0 + 1e-13, 1.0 - 1e-13]),
        ),
        min_size=1,
        max_size=9,
    ),
    st.booleans(),
)
def test_bucket_quantile_agrees_with_a_loop(q: float, buckets: list[tuple[float, float]], tolerant: bool) -> None:
    ordered = sorted(buckets)
    bounds = np.array([[b] for b, _ in ordered])
    counts = np.array([[c] for _, c in ordered])
    with np.errstate(all="ignore"):
        got = float(bucket_quantile(np.array([q]), bounds, counts, tolerant)[0])
    assert got == pytest.approx(_plain_quantile(q, buckets, tolerant), rel=1e-9, nan_ok=True)


def test_rounding_noise_between_buckets_is_levelled_in_3_only() -> None:
    """Buckets that differ by 1e-13 hold no observation; 2.42 puts the quantile between them."""
    rows = {'h{le="1"}': [1.0], 'h{le="2"}': [1.0 + 1e-13], 'h{le="+Inf"}': [1.0 + 2e-13]}
    store = load(rows, [1000])
    text = "histogram_quantile(1, h)"
    three, two = (Engine(store, mode).instant(parse(text), 1000) for mode in ("3", "2"))
    assert isinstance(three, Vector)
    assert isinstance(two, Vector)
    assert three.values.tolist() == [[1.0]]
    assert two.values.tolist() == [[2.0]]


# --- tracking ------------------------------------------------------------------------------------------------


def test_tracking_names_the_raw_series_and_the_oldest_of_them() -> None:
    store = SeriesStore()
    a, b = store.frame("a"), store.frame("b")
    for at in range(0, 60_000, 10_000):
        a.append(at, [a.row(Labels.of({"i": "a"}, "m_total"))], [at / 1000])
        if at <= 30_000:
            b.append(at, [b.row(Labels.of({"i": "b"}, "m_total"))], [at / 500])
    one, two = (Labels.of({"i": i}, "m_total") for i in "ab")
    engine = Engine(store)
    for text, labels, oldest in (
        ("sum(rate(m_total[1m]))", {one, two}, 30_000),
        ("rate(m_total{i='a'}[1m]) * 2", {one}, 50_000),
        ("m_total{i='a'} / on () m_total{i='b'}", {one, two}, 30_000),
        ("m_total{i='a'} > scalar(m_total{i='b'}) - 100", {one, two}, 30_000),
        ("max(m_total) or vector(1)", {one, two}, 30_000),
        ("topk(1, m_total)", {two}, 30_000),
        ("avg_over_time(max(m_total)[30s:10s])", {one, two}, None),
    ):
        value = engine.instant(parse(text), 55_000, track=True)
        assert isinstance(value, Vector)
        assert value.inputs is not None
        assert value.oldest is not None
        if oldest is not None:
            assert (value.inputs[0], int(value.oldest[0, 0])) == (frozenset(labels), oldest), text
    untracked = engine.instant(parse("m_total"), 55_000)
    assert isinstance(untracked, Vector)
    assert untracked.oldest is None
    assert untracked.inputs is None
