"""A PromQL answer as Prometheus' own API writes it, and as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from probes.labels import Labels
from probes.promql.value import Matrix, Scalar, String, Value, Vector
from tui.commands.table import table
from tui.commands.when import rfc3339

Sample = list[Any]  # [seconds, "value"], as the API has it


def number(value: float) -> str:
    """A float as Prometheus' API writes it: shortest digits, an exponent only below 1e-6 and from 1e21 on."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    size = abs(value)
    if size and not 1e-6 <= size < 1e21:
        return repr(value)
    return format(Decimal(repr(value)), "f").removesuffix(".0")


def seconds(time_ms: int) -> float | int:
    return time_ms // 1000 if time_ms % 1000 == 0 else time_ms / 1000


def instant_data(value: Value) -> dict[str, Any]:
    """What ``/api/v1/query`` gives in ``data``, of an answer with one step."""
    if isinstance(value, String):
        return {"resultType": "string", "result": [0, value.value]}
    if isinstance(value, Scalar):
        sample = [seconds(int(value.times[0])), number(float(value.values[0]))]
        return {"resultType": "scalar", "result": sample}
    if isinstance(value, Matrix):
        rows = zip(value.labels, value.times, value.values, strict=True)
        found = [{"metric": one.as_dict(), "values": _samples(times, values)} for one, times, values in rows]
        return {"resultType": "matrix", "result": found}
    series: list[dict[str, Any]] = []
    for labels, values, present in zip(value.labels, value.values, value.present, strict=True):
        if present[0]:
            sample = [seconds(int(value.times[0])), number(float(values[0]))]
            series.append({"metric": labels.as_dict(), "value": sample})
    return {"resultType": "vector", "result": series}


def range_data(value: Value) -> dict[str, Any]:
    """What ``/api/v1/query_range`` gives in ``data``."""
    if isinstance(value, Scalar):
        return {"resultType": "matrix", "result": [{"metric": {}, "values": _samples(value.times, value.values)}]}
    assert isinstance(value, Vector), "the engine refuses strings and bare ranges over a range"
    found = []
    for labels, values, present in zip(value.labels, value.values, value.present, strict=True):
        if present.any():
            found.append({"metric": labels.as_dict(), "values": _samples(value.times[present], values[present])})
    return {"resultType": "matrix", "result": found}


def _samples(times: Any, values: Any) -> list[Sample]:
    return [[seconds(t), number(v)] for t, v in zip(times.tolist(), values.tolist(), strict=True)]


def as_text(data: dict[str, Any]) -> str:
    """The same answer for a person; an empty one says that it is empty."""
    kind, result = data["resultType"], data["result"]
    if kind in ("scalar", "string"):
        return str(result[1])
    if not result:
        return "no series: nothing matches, or nothing has a value at that time"
    if kind == "vector":
        return _vector(result)
    return "\n".join(f"{_series(row['metric'])}\n{_points(row['values'])}" for row in result)


def _vector(result: Sequence[dict[str, Any]]) -> str:
    """One line a series, a column for each label that differs; what all share stands above."""
    metrics = [row["metric"] for row in result]
    shared = dict(set(metrics[0].items()).intersection(*(m.items() for m in metrics[1:]))) if len(metrics) > 1 else {}
    if len(metrics) == 1:
        return f"{_series(metrics[0])}  {result[0]['value'][1]}"
    names = list(dict.fromkeys(name for m in metrics for name in sorted(m) if name not in shared))
    rows = [[*(m.get(name, "") for name in names), row["value"][1]] for m, row in zip(metrics, result, strict=True)]
    head = [*("metric" if name == "__name__" else name for name in names), "value"]
    text = table(head, rows, right=(len(names),))
    return f"{_series(shared)}\n{text}" if shared else text


def _series(metric: dict[str, str]) -> str:
    return str(Labels.of(metric))


def _points(values: Sequence[Sample]) -> str:
    return table((), [[rfc3339(round(t * 1000)), v] for t, v in values], right=(1,), indent="  ")
