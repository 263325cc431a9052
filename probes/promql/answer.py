"""Values as Prometheus' HTTP API gives them in ``data``."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from probes.promql.errors import PromQLError
from probes.promql.limits import MOST_SHOWN
from probes.promql.value import Matrix, Scalar, String, Value, Vector


def to_prometheus_json(value: Value, kind: Literal["instant", "range"], at_ms: int | None = None) -> dict[str, Any]:
    """The ``data`` of ``/api/v1/query`` (kind "instant") or ``/api/v1/query_range`` ("range").

    ``at_ms`` is the time of a string, which has none of its own. Range results are sorted by labels.
    """
    if kind == "range":
        return {"resultType": "matrix", "result": _series(value)}
    if isinstance(value, Vector):
        rows = zip(value.labels, value.values[:, 0].tolist(), value.present[:, 0].tolist(), strict=True)
        time = seconds(int(value.times[0]))
        result = [{"metric": labels.as_dict(), "value": [time, number(v)]} for labels, v, here in rows if here]
        return {"resultType": "vector", "result": result}
    if isinstance(value, Scalar):
        return {"resultType": "scalar", "result": [seconds(int(value.times[0])), number(float(value.values[0]))]}
    if isinstance(value, String):
        return {"resultType": "string", "result": [seconds(at_ms or 0), value.value]}
    return {"resultType": "matrix", "result": _matrix(value)}


def _series(value: Value) -> list[dict[str, Any]]:
    if isinstance(value, Scalar):
        return [{"metric": {}, "values": _pairs(value.times.tolist(), value.values.tolist())}]
    if isinstance(value, Matrix):
        return _matrix(value)
    if isinstance(value, String):
        raise ValueError('invalid expression type "string" for range query, must be Scalar or instant Vector')
    count = int(np.count_nonzero(value.present))
    if count > MOST_SHOWN:
        raise PromQLError(
            f"the answer has {count:,} values, more than the most there may be, {MOST_SHOWN:,}: "
            "ask for fewer steps or fewer series"
        )
    found = []
    for i in sorted(range(len(value.labels)), key=lambda i: value.labels[i].pairs):
        here = np.flatnonzero(value.present[i])
        if here.size:
            pairs = _pairs(value.times[here].tolist(), value.values[i, here].tolist())
            found.append({"metric": value.labels[i].as_dict(), "values": pairs})
    return found


def _matrix(value: Matrix) -> list[dict[str, Any]]:
    rows = zip(value.labels, value.times, value.values, strict=True)
    return [{"metric": lab.as_dict(), "values": _pairs(t.tolist(), v.tolist())} for lab, t, v in rows]


def _pairs(times: list[int], values: list[float]) -> list[list[float | str]]:
    return [[seconds(t), number(v)] for t, v in zip(times, values, strict=True)]


def seconds(time_ms: int) -> float:
    """Unix seconds; whole where they are whole."""
    return time_ms // 1000 if time_ms % 1000 == 0 else time_ms / 1000


def number(value: float) -> str:
    """A sample value as Prometheus prints it (Go's shortest form, an exponent below 1e-6 and from 1e21)."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value and not 1e-6 <= abs(value) < 1e21:
        return np.format_float_scientific(value, trim="-", exp_digits=2)
    return np.format_float_positional(value, trim="-")
