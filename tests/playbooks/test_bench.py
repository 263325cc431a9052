"""Questions asked once, answered for each member."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from playbooks.bench import Answer, Bench, signals
from playbooks.grid import Grid
from probes.labels import Labels
from tests.playbooks.stub import GRID, NAN, OTHER, POD, START_MS, StubView, after, ask


def test_no_sample_is_not_a_no() -> None:
    bench = Bench(StubView({"x": {POD: lambda t: NAN if t < 150 else 0.0}}), GRID)
    answered = bench.answer(ask("x"), POD)
    half = (bench.grid.times - START_MS) / 1000 < 150
    assert (answered.answers[half] == Answer.UNKNOWN).all()
    assert (answered.answers[~half] == Answer.FALSE).all()
    assert (bench.answer(ask("nowhere"), POD).answers == Answer.UNKNOWN).all()


@pytest.mark.parametrize(("op", "worst"), [(">=", 3.0), (">", 3.0), ("<", 1.0), ("<=", 1.0)])
def test_the_worst_row_speaks_for_a_member(op: str, worst: float) -> None:
    rows = {POD.replace(reason="a"): 1.0, POD.replace(reason="b"): 3.0, POD.replace(reason="c"): NAN, OTHER: 9.0}
    bench = Bench(StubView({"x": rows}), GRID)
    assert set(bench.answer(ask("x", op=op), POD).values) == {worst}


@pytest.mark.parametrize(
    ("op", "at"),
    [(">", "nny"), (">=", "nyy"), ("<", "ynn"), ("<=", "yyn"), ("==", "nyn"), ("!=", "yny")],
)
def test_comparisons(op: str, at: str) -> None:
    said = [
        Bench(StubView({"x": {POD: value}}), GRID).answer(ask("x", op=op), POD).answers[-1] for value in (0.5, 1.0, 1.5)
    ]
    assert "".join("y" if a == Answer.TRUE else "n" for a in said) == at


def test_a_row_with_fewer_labels_speaks_of_every_member_that_agrees() -> None:
    view = StubView({"x": {Labels.of({"instance": "pod-1:8000"}): 5.0}, "y": {Labels.of(): 7.0}})
    bench = Bench(view, GRID)
    assert bench.answer(ask("x"), POD).values[-1] == 5.0
    assert bench.answer(ask("x"), OTHER).answers[-1] == Answer.UNKNOWN
    assert bench.answer(ask("y"), OTHER).values[-1] == 7.0


def test_relative_to_the_earlier_part_of_the_window() -> None:
    bench = Bench(StubView({"x": {POD: after(150, 30.0, before=10.0)}}), GRID)
    answered = bench.answer(ask("x", relative_to="baseline", threshold=2.0), POD)
    assert answered.values[0] == 1.0
    assert answered.values[-1] == 3.0
    assert answered.answers[-1] == Answer.TRUE


@pytest.mark.parametrize("before", [0.0, NAN])
def test_a_baseline_of_nothing_cannot_be_compared_with(before: float) -> None:
    bench = Bench(StubView({"x": {POD: after(150, 30.0, before=before)}}), GRID)
    assert bench.answer(ask("x", relative_to="baseline"), POD).answers[-1] == Answer.UNKNOWN


def test_a_window_without_an_earlier_part_cannot_be_compared() -> None:
    short = Grid(START_MS, START_MS + 120_000, 5_000)
    bench = Bench(StubView({"x": {POD: after(60, 30.0, before=10.0)}}), short)
    assert bench.answer(ask("x", relative_to="baseline"), POD).answers[-1] == Answer.UNKNOWN
    assert bench.answer(ask("x"), POD).answers[-1] == Answer.TRUE


def test_against_another_time_overrules_the_earlier_part() -> None:
    late = dataclasses.replace(GRID.shifted(-3_600_000), against_ms=3_600_000)
    bench = Bench(StubView({"x": {POD: after(3_600, 30.0, before=10.0), OTHER: 10.0}}), late)
    relative = ask("x", relative_to="baseline", threshold=2.0)
    assert set(bench.answer(relative, POD).values) == {3.0}
    assert set(bench.answer(relative, OTHER).values) == {1.0}


def test_against_a_time_without_data_is_no_answer() -> None:
    late = dataclasses.replace(GRID.shifted(-3_600_000), against_ms=3_600_000)
    bench = Bench(StubView({"x": {POD: after(3_600, 30.0, before=NAN)}}), late)
    assert bench.answer(ask("x", relative_to="baseline"), POD).answers[-1] == Answer.UNKNOWN


class _Sources:
    def sources(self, name: str) -> list[str]:
        return {"kv:a": ["vllm:a", "vllm:a_old"], "kv:b": ["vllm:b"]}[name]


def test_missing_names_the_signal_and_what_would_fill_it() -> None:
    test = ask("t", kind="metrics")
    test = dataclasses.replace(test, expr="kv:a / kv:b + kv:a")
    view = StubView({"kv:b": {POD: 1.0, OTHER: NAN}})
    bench = Bench(view, GRID, _Sources())
    assert bench.missing(test, POD) == ("kv:a", "vllm:a", "vllm:a_old")
    assert bench.missing(test, OTHER) == ("kv:a", "vllm:a", "vllm:a_old", "kv:b", "vllm:b")
    assert Bench(view, GRID).missing(test, OTHER) == ("kv:a", "kv:b")


def test_signals_of_an_expression() -> None:
    assert signals("rate(kv:a_total[1m]) / on (x) kv:b + kv:a_total") == ("kv:a_total", "kv:b")


def test_members_are_those_that_were_seen() -> None:
    view = StubView({"x": {POD.replace(model_name="m"): 1.0, OTHER: lambda t: 1.0 if t < 100 else NAN}})
    bench = Bench(view, GRID)
    assert bench.members(["x", "nowhere"], ("instance", "engine")) == [POD, OTHER]
    assert bench.members(["x"], ("instance", "engine"), trailing=12) == [POD]
    assert bench.members(["x"], ("gpu",)) == []


def test_one_question_is_asked_once() -> None:
    view = StubView({"x": {POD: 1.0, OTHER: 2.0}})
    bench = Bench(view, GRID)
    for member in (POD, OTHER, POD):
        bench.answer(ask("x"), member)
        bench.answer(ask("x", threshold=2.0), member)
    assert view.asked == ["x"]


def test_the_same_question_in_other_words_keeps_its_words() -> None:
    bench = Bench(StubView({"x": {POD: 2.0}}), GRID)
    first = dataclasses.replace(ask("x", "policy"), name="first")
    second = dataclasses.replace(ask("x", "physical", says="other words"), name="second")
    assert bench.answer(first, POD).test is first
    assert bench.answer(second, POD).test is second
    assert bench.answer(second, POD).values is bench.answer(first, POD).values


def test_a_scalar_speaks_of_everybody() -> None:
    class Scalar:
        values = np.full(len(GRID.times), 4.0)

    class View:
        def range(self, text: str, start_ms: int, end_ms: int, step_ms: int) -> Scalar:
            return Scalar()

    assert Bench(View(), GRID).answer(ask("4"), POD).values[-1] == 4.0
