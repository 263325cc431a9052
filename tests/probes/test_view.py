"""The view: expressions are expanded once, and a number says where it comes from."""

from __future__ import annotations

import pytest

from probes.labels import Labels
from probes.promql import ast
from probes.promql.errors import PromQLError
from probes.promql.value import Scalar, Vector
from probes.series import SeriesStore
from probes.view import View


class Renaming:
    """Rules that know one canonical name."""

    def __init__(self) -> None:
        self.calls = 0

    def expand(self, expr: ast.Expr) -> ast.Expr:
        self.calls += 1

        def visit(node: ast.Expr) -> ast.Expr | None:
            if isinstance(node, ast.VectorSelector) and node.name == "kv:requests_total":
                return ast.VectorSelector("engine:requests_total", node.matchers, node.offset_ms, node.at)
            return None

        return ast.transform(expr, visit)


@pytest.fixture
def store() -> SeriesStore:
    made = SeriesStore()
    for name, last in (("a", 60_000), ("b", 40_000)):
        frame = made.frame(name)
        for at in range(0, last + 1, 10_000):
            frame.append(at, [frame.row(Labels.of({"instance": name}, "engine:requests_total"))], [at / 500])
    return made


def test_expressions_are_parsed_and_expanded_once(store: SeriesStore) -> None:
    rules = Renaming()
    view = View(store, rules)
    for at in (40_000, 50_000, 60_000):
        value = view.instant('rate(kv:requests_total{instance="a"}[30s])', at)
        assert isinstance(value, Vector)
        assert value.values.tolist() == [[2.0]]
    assert rules.calls == 1
    assert str(view.expression("kv:requests_total")) == "engine:requests_total"
    assert rules.calls == 2


def test_range(store: SeriesStore) -> None:
    value = View(store).range("sum(rate(engine:requests_total[30s]))", 30_000, 60_000, 10_000)
    assert isinstance(value, Vector)
    assert value.values.tolist()[0][:2] == [4.0, 4.0]


def test_mode_reaches_the_engine(store: SeriesStore) -> None:
    text = 'count_over_time(engine:requests_total{instance="a"}[30s])'
    three, two = (View(store, mode=mode).instant(text, 60_000) for mode in ("3", "2"))
    assert isinstance(three, Vector)
    assert isinstance(two, Vector)
    assert (three.values[0, 0], two.values[0, 0]) == (3.0, 4.0)


def test_a_number_says_where_it_comes_from(store: SeriesStore) -> None:
    told = View(store, Renaming()).explain("sum(rate(kv:requests_total[1m]))", 65_000)
    assert told.expanded == "sum(rate(engine:requests_total[1m]))"
    assert told.value == pytest.approx(4.0, rel=0.2)
    assert [(str(i.labels), i.value, i.age_ms) for i in told.inputs] == [
        ('engine:requests_total{instance="a"}', 120.0, 5_000),
        ('engine:requests_total{instance="b"}', 80.0, 25_000),
    ]
    assert told.oldest_age_ms == 25_000
    assert told.windows_ms == (60_000,)


def test_one_element_of_many_and_none(store: SeriesStore) -> None:
    view = View(store)
    told = view.explain("engine:requests_total", 50_000, {"instance": "b"})
    assert (told.value, told.oldest_age_ms, len(told.inputs)) == (80.0, 10_000, 1)
    missing = view.explain("engine:requests_total", 50_000, {"instance": "z"})
    assert (missing.value, missing.oldest_age_ms, missing.inputs) == (None, None, ())
    number = view.explain('scalar(engine:requests_total{instance="a"})', 50_000)
    assert number.value == 100.0
    assert number.oldest_age_ms == 0
    literal = view.instant("1 + 1", 50_000)
    assert isinstance(literal, Scalar)
    assert view.explain("1 + 1", 50_000).inputs == ()


def test_a_broken_expression_is_a_clear_error(store: SeriesStore) -> None:
    with pytest.raises(PromQLError) as caught:
        View(store).instant("sum(rate(x[5m])", 0)
    assert str(caught.value) == "column 4: this parenthesis '(' is never closed"
