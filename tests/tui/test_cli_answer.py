"""Answers in the words of Prometheus' own API."""

from __future__ import annotations

import math

import numpy as np
import pytest

from probes.labels import Labels
from probes.promql.value import Scalar, Vector
from tui.commands.answer import as_text, instant_data, number, range_data


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (5.0, "5"),
        (-2.5, "-2.5"),
        (0.1, "0.1"),
        (1e-6, "0.000001"),
        (0.00001234, "0.00001234"),
        (9.9e-7, "9.9e-07"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1234567890123456789.0, "1234567890123456800"),
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_numbers_are_written_as_prometheus_writes_them(value: float, text: str) -> None:
    assert number(value) == text


A = Labels.of({"instance": "a:1", "engine": "0"}, name="m")
B = Labels.of({"instance": "a:1", "engine": "1"}, name="m")


def vector(*columns: tuple[float, float], present: list[list[bool]]) -> Vector:
    times = np.array([1_000, 2_500][: len(columns)])
    return Vector((A, B), times, np.array(columns).T, np.array(present))


def test_an_instant_vector() -> None:
    data = instant_data(vector((1.0, 2.0), present=[[True], [True]]))
    assert data == {
        "resultType": "vector",
        "result": [
            {"metric": {"__name__": "m", "engine": "0", "instance": "a:1"}, "value": [1, "1"]},
            {"metric": {"__name__": "m", "engine": "1", "instance": "a:1"}, "value": [1, "2"]},
        ],
    }
    text = as_text(data).splitlines()
    assert text[0] == 'm{instance="a:1"}'
    assert [line.split() for line in text[1:]] == [["engine", "value"], ["0", "1"], ["1", "2"]]


def test_what_is_absent_is_left_out_not_zero() -> None:
    data = instant_data(vector((0.0, 2.0), present=[[False], [True]]))
    assert [row["value"][1] for row in data["result"]] == ["2"]
    nothing = instant_data(vector((0.0, 0.0), present=[[False], [False]]))
    assert nothing["result"] == []
    assert "no series" in as_text(nothing)


def test_a_range_keeps_its_holes() -> None:
    data = range_data(vector((1.0, 2.0), (3.0, 4.0), present=[[True, False], [True, True]]))
    assert [row["values"] for row in data["result"]] == [[[1, "1"]], [[1, "2"], [2.5, "4"]]]
    assert data["resultType"] == "matrix"


def test_a_scalar() -> None:
    assert instant_data(Scalar(np.array([1_000]), np.array([3.0]))) == {"resultType": "scalar", "result": [1, "3"]}
