"""The view: expressions are expanded once, and a number says where it comes from."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from probes.labels import Labels
from probes.promql import ast
from probes.promql.errors import PromQLError
from probes.promql.parse import parse
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


@pytest.mark.parametrize("span", ["20s", "30s", "1m", "40000ms"])
def test_texts_that_differ_in_their_ranges_are_expanded_once(store: SeriesStore, span: str) -> None:
    rules = Renaming()
    view = View(store, rules)
    view.instant("sum(rate(kv:requests_total[45s])) / sum(increase(kv:requests_total[50s:5s]))", 60_000)
    text = f"sum(rate(kv:requests_total[{span}])) / sum(increase(kv:requests_total[50s:5s]))"
    assert view.instant(text, 60_000).values.tolist() == View(store, Renaming()).instant(text, 60_000).values.tolist()
    assert str(view.expression(text)) == str(Renaming().expand(parse(text)))
    assert rules.calls == 1


@pytest.mark.parametrize(
    "text", ['rate(engine:requests_total{instance=~"a[5m]"}[30s])', "rate(x[0s])", "rate(x[5m]", "rate(x[99999d])"]
)
def test_brackets_in_quotes_and_bad_ranges_are_read_as_written(store: SeriesStore, text: str) -> None:
    def read(how: Callable[[str], ast.Expr]) -> str:
        try:
            return str(how(text))
        except PromQLError as error:
            return f"refused: {error}"

    assert read(View(store).expression) == read(parse)


def test_a_series_that_comes_later_is_found(store: SeriesStore) -> None:
    view = View(store)
    for _ in range(2):
        assert not len(view.instant("sum(rate(late_total[30s]))", 60_000).labels)
        assert view.instant("absent(late_total)", 60_000).values.tolist() == [[1.0]]
    frame = store.frame("a")
    row = frame.row(Labels.of({"instance": "a"}, "late_total"))
    frame.append(61_000, [row], [0.0])
    frame.append(71_000, [row], [10.0])
    assert view.instant("sum(rate(late_total[30s]))", 71_000).values.tolist() != []
    assert not len(view.instant("absent(late_total)", 71_000).labels)


def test_instances_are_those_that_the_query_counts(store: SeriesStore) -> None:
    from probes.rules import RuleSet

    view = View(store, RuleSet.load())
    frame = store.frame("a")
    for at, name in ((60_000, "vllm:num_requests_running"), (200_000, "vllm:num_requests_waiting")):
        frame.append(at, [frame.row(Labels.of({"instance": "a", "engine": "0"}, name))], [1.0])
    for series in ("kv:requests_running", "kv:requests_waiting", "kv:preemptions_total"):
        for at in (60_000, 199_000, 359_999, 360_000, 361_000, 500_000):
            asked = view.instant(f"count by (instance) (last_over_time({series}[5m]))", at)
            expected = frozenset(labels.get("instance") for labels in asked.labels)
            assert view.instances(series, at, 300_000) == expected


def test_a_round_of_questions_says_what_each_alone_says(store: SeriesStore) -> None:
    texts = (
        "sum by (instance) (rate(engine:requests_total[30s]))",
        "sum by (instance) (rate(engine:requests_total[30s])) / sum by (instance) (rate(engine:requests_total[20s]))",
        "sum(rate(engine:requests_total[30s] @ end())) - sum(rate(engine:requests_total[30s] offset 10s))",
        "max_over_time(sum(rate(engine:requests_total[30s]))[20s:10s])",
    )

    def asked(view: View) -> list[object]:
        found = [view.range(text, start, 60_000, step) for text in texts for start, step in SPANS]
        found += [view.instant(text, 50_000) for text in texts]
        return [(one.labels, one.times.tolist(), one.present.tolist(), str(one.values.tolist())) for one in found]

    view = View(store)
    with view.sharing():
        together = asked(view)
    assert together == asked(View(store))


SPANS = ((40_000, 10_000), (40_000, 5_000), (50_000, 10_000))


def test_what_is_shared_ends_with_its_round(store: SeriesStore) -> None:
    view = View(store)
    text = "sum(max_over_time(engine:requests_total[30s]))"
    with view.sharing():
        before = view.instant(text, 70_000)
        assert view.instant(f"({text}) + 0", 70_000).values.tolist() == before.values.tolist()
    store.frame("a").append(
        70_000, [store.frame("a").row(Labels.of({"instance": "a"}, "engine:requests_total"))], [9e9]
    )
    assert view.instant(text, 70_000).values.tolist() != before.values.tolist()
