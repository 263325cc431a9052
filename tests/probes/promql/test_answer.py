"""Values as Prometheus' HTTP API writes them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from probes.labels import Labels
from probes.promql.answer import number, to_prometheus_json
from probes.promql.engine import Engine
from probes.promql.parse import parse
from probes.series import ABSENT, SeriesStore


@pytest.fixture
def engine() -> Engine:
    store = SeriesStore()
    labels = [Labels.of({"n": n}, "m") for n in ("b", "a")]
    matrix = np.array([[1.0, 2.5, math.nan], [3.0, ABSENT, math.inf]])
    store.frame("x").load(np.array([1000, 2500, 3000]), labels, matrix)
    return Engine(store)


def test_instant_vector(engine: Engine) -> None:
    data = to_prometheus_json(engine.instant(parse("m"), 2600), "instant")
    assert data == {
        "resultType": "vector",
        "result": [
            {"metric": {"__name__": "m", "n": "b"}, "value": [2.6, "2.5"]},
            {"metric": {"__name__": "m", "n": "a"}, "value": [2.6, "3"]},
        ],
    }
    assert json.dumps(data)


def test_range_is_sorted_and_leaves_out_what_is_absent(engine: Engine) -> None:
    value = engine.range(parse("m > 1"), 1000, 3000, 1000)
    assert to_prometheus_json(value, "range") == {
        "resultType": "matrix",
        "result": [
            {"metric": {"__name__": "m", "n": "a"}, "values": [[1, "3"], [2, "3"], [3, "+Inf"]]},
        ],
    }


def test_scalar_string_and_raw_samples(engine: Engine) -> None:
    assert to_prometheus_json(engine.instant(parse("1 / 3"), 1500), "instant") == {
        "resultType": "scalar",
        "result": [1.5, "0.3333333333333333"],
    }
    assert to_prometheus_json(engine.range(parse("2"), 0, 1000, 1000), "range")["result"] == [
        {"metric": {}, "values": [[0, "2"], [1, "2"]]}
    ]
    assert to_prometheus_json(engine.instant(parse('"hi"'), 1500), "instant", 1500) == {
        "resultType": "string",
        "result": [1.5, "hi"],
    }
    raw = to_prometheus_json(engine.instant(parse('m{n="a"}[1h]'), 3000), "instant")
    assert raw == {
        "resultType": "matrix",
        "result": [{"metric": {"__name__": "m", "n": "a"}, "values": [[1, "3"], [3, "+Inf"]]}],
    }
    with pytest.raises(ValueError, match="string"):
        to_prometheus_json(engine.range(parse('"hi"'), 0, 1, 1), "range")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (0.1, "0.1"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e-7, "1.5e-07"),
        (1e-6, "0.000001"),
        (1234567890123.0, "1234567890123"),
        (-1e100, "-1e+100"),
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text
