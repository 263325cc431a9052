"""Histories: appended, bounded, and drawn without inventing or hiding values."""

from __future__ import annotations

import math

import pytest

from probes.labels import Labels
from tui.trail import History, Trail

POD = Labels.of({"instance": "pod-1:8000"})
NAN = math.nan


def same(found: list[float], wanted: list[float]) -> bool:
    return len(found) == len(wanted) and all(
        a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(found, wanted, strict=True)
    )


def test_a_column_shows_its_highest_sample() -> None:
    trail = Trail((0, 10, 20, 30), (1.0, 9.0, 2.0, 3.0))
    assert same(trail.columns(0, 40, 2), [9.0, 3.0])
    assert same(trail.columns(0, 40, 2, low=True), [1.0, 2.0])


def test_a_sample_holds_until_the_next_tick_and_a_gap_stays_a_gap() -> None:
    trail = Trail((0, 40, 80), (5.0, NAN, 7.0))
    assert same(trail.columns(0, 80, 8), [5, 5, 5, 5, NAN, NAN, NAN, 7])


def test_nothing_before_the_first_sample() -> None:
    assert same(Trail((50,), (1.0,)).columns(0, 100, 4), [NAN, NAN, 1, NAN])


def test_samples_outside_the_span_are_left_out() -> None:
    assert same(Trail((0, 200), (4.0, 4.0)).columns(50, 100, 2), [NAN, NAN])


@pytest.mark.parametrize("width", [1, 3, 17, 60])
def test_the_newest_sample_is_always_in_the_last_column(width: int) -> None:
    trail = Trail(tuple(range(0, 300, 5)), tuple(float(i) for i in range(60)))
    assert trail.columns(0, 295, width)[-1] == 59.0


def test_history_keeps_one_axis_and_forgets_what_is_old() -> None:
    history = History(keep_ms=100)
    history.append([0, 50], [("a", {POD: (1.0, 2.0)})])
    history.append([100], [("b", {POD: (3.0,)})])
    frozen = history.freeze()
    assert frozen["a", POD].times == (0, 50, 100)
    assert same(list(frozen["b", POD].values), [NAN, NAN, 3.0])
    assert history.last(("a", POD)) == (50, 2.0)
    history.append([160], [])
    assert history.freeze()["b", POD].times == (100, 160)
    assert ("a", POD) not in history.freeze()


def test_a_frozen_picture_does_not_change() -> None:
    history = History(1000)
    history.append([0], [("a", {POD: (1.0,)})])
    frozen = history.freeze()
    history.append([1], [("a", {POD: (2.0,)})])
    assert frozen["a", POD] == Trail((0,), (1.0,))
