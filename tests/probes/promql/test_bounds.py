"""What an expression may cost: a subquery over no more than the data, and caps that say what to do."""

from __future__ import annotations

import numpy as np
import pytest

from probes.labels import Labels
from probes.promql import limits
from probes.promql.answer import to_prometheus_json
from probes.promql.engine import Engine
from probes.promql.errors import PromQLError
from probes.promql.parse import parse
from probes.promql.value import Vector
from probes.series import SeriesStore


def engine(series: int = 1, columns: int = 60) -> Engine:
    store = SeriesStore()
    axis = np.arange(columns, dtype=np.int64) * 1000 + 1_600_000_000_000
    labels = [Labels.of({"n": str(n)}, name="m") for n in range(series)]
    store.frame("test").load(axis, labels, np.arange(series * columns, dtype=np.float64).reshape(series, columns))
    return Engine(store)


END = 1_600_000_059_000


def only(engine: Engine, text: str, at_ms: int = END) -> float:
    value = engine.instant(parse(text), at_ms)
    assert isinstance(value, Vector)
    assert len(value.labels) == 1
    return float(value.values[0, 0])


def test_a_subquery_over_thirty_years_costs_no_more_than_its_data() -> None:
    assert only(engine(), "count_over_time(m[1000000000s:1s])") == 60
    assert only(engine(), "max_over_time(m[1000000000s:1s])") == 59


def test_what_lies_outside_the_data_keeps_lookback_offset_and_range() -> None:
    found = engine()
    assert only(found, "count_over_time(m[1h:1s])", END + 3_000_000) == 60 + 299
    assert only(found, "count_over_time((m offset 10s)[1h:1s])") == 50
    assert only(found, "count_over_time((m offset -10s)[1h:1s])") == 70
    assert only(found, "count_over_time(sum_over_time(m[10s])[1h:1s])", END + 1_000_000) == 60 + 9
    assert only(found, "count_over_time(vector(1)[1h:1s])") == 3600
    assert only(found, "count_over_time(absent(m)[1h:1s])") == 3540


def test_windows_far_apart_do_not_fill_the_time_between_them() -> None:
    found = engine().range(parse("count_over_time(vector(1)[5s:1s])"), 0, 3_000_000_000_000, 1_000_000_000)
    assert isinstance(found, Vector)
    assert set(found.values[found.present].tolist()) == {5.0}


def test_windows_far_apart_are_shared_with_no_others() -> None:
    found = engine(columns=6000)
    times = (END, END + 3_000_000)
    texts = [f"sum_over_time(abs(m)[{span}:{step}])" for span, step in (("12s", "4s"), ("24s", "8s"), ("6s", "2s"))]
    for offset in range(0, 8000, 1000):
        asked = np.array(times, dtype=np.int64) + offset
        alone = [found.evaluate(parse(text), asked) for text in texts]
        with found.sharing():
            together = [found.evaluate(parse(text), asked) for text in texts]
        for one, other in zip(alone, together, strict=True):
            assert isinstance(one, Vector)
            assert isinstance(other, Vector)
            assert np.array_equal(one.values, other.values)


@pytest.mark.parametrize("text", ["max_over_time(m[1y:1ms])", "max_over_time(vector(1)[1000000000s:1s])"])
def test_too_many_steps_of_a_subquery_are_refused_with_the_number(text: str) -> None:
    with pytest.raises(PromQLError, match="steps over the data that there is, and 11,000 is the most"):
        engine().instant(parse(text), END)


@pytest.mark.parametrize("text", ["m", "rate(m[10s])", "max_over_time(m[10s:1s])"])
def test_too_many_values_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_CELLS", 3000)
    assert isinstance(engine(50).range(parse(text), END - 9_000, END, 1000), Vector)
    with pytest.raises(PromQLError, match="fewer steps or fewer series"):
        engine(50).range(parse(text), END - 9_000, END, 100)


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ('m{a="\\x"}', 5, "broken escape"),
        ('m{b="\\\\",a=~"\\d"}', 13, "unknown escape sequence 'd'"),
        ('label_replace(m,"a","\\u12","b","c")', 21, "broken escape"),
    ],
)
def test_a_bad_escape_has_a_place(text: str, column: int, words: str) -> None:
    with pytest.raises(PromQLError, match=words) as caught:
        parse(text)
    assert caught.value.column == column


def test_a_range_answer_of_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.promql.answer.MOST_SHOWN", 100)
    value = engine(20).range(parse("m"), END - 9_000, END, 1000)
    with pytest.raises(PromQLError, match="the answer has 200 values"):
        to_prometheus_json(value, "range")
