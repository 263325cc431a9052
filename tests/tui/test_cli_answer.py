"""Answers as a person reads them."""

from __future__ import annotations

from tui.commands.answer import as_text

A = {"__name__": "m", "engine": "0", "instance": "a:1"}
B = {"__name__": "m", "engine": "1", "instance": "a:1"}


def test_what_series_share_stands_above_them() -> None:
    data = {"resultType": "vector", "result": [{"metric": A, "value": [1, "1"]}, {"metric": B, "value": [1, "20"]}]}
    assert as_text(data).splitlines() == ['m{instance="a:1"}', "engine  value", "0           1", "1          20"]


def test_one_series_is_one_line() -> None:
    data = {"resultType": "vector", "result": [{"metric": A, "value": [1, "NaN"]}]}
    assert as_text(data) == 'm{engine="0",instance="a:1"}  NaN'


def test_series_with_nothing_in_common() -> None:
    rows = [{"metric": {"a": "1"}, "value": [1, "1"]}, {"metric": {"b": "2"}, "value": [1, "2"]}]
    assert as_text({"resultType": "vector", "result": rows}).splitlines()[0].split() == ["a", "b", "value"]


def test_no_series_is_said_and_is_no_zero() -> None:
    assert "no series" in as_text({"resultType": "vector", "result": []})


def test_a_range_shows_every_sample_with_its_time() -> None:
    data = {"resultType": "matrix", "result": [{"metric": A, "values": [[0, "1"], [2.5, "4"]]}]}
    assert as_text(data).splitlines()[1:] == ["  1970-01-01T00:00:00Z      1", "  1970-01-01T00:00:02.500Z  4"]


def test_a_scalar_is_its_number() -> None:
    assert as_text({"resultType": "scalar", "result": [1, "3"]}) == "3"
