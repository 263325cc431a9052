"""A PromQL answer for a person: the ``data`` of Prometheus' API as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from playbooks.printable import name_text, names_text, printable, shortened
from probes.labels import Labels
from tui.commands.table import table
from tui.commands.when import rfc3339

Sample = Sequence[Any]  # [seconds, "value"], as the API has it


def as_text(data: dict[str, Any]) -> str:
    """One line a series, or a block of samples a series; an empty answer says that it is empty."""
    kind, result = data["resultType"], data["result"]
    if kind in ("scalar", "string"):
        return printable(str(result[1]))
    if not result:
        return "no series: nothing matches, or nothing has a value at that time"
    if kind == "vector":
        return _vector(result)
    return "\n".join(f"{_series(row['metric'])}\n{_points(row['values'])}" for row in result)


def _vector(result: Sequence[dict[str, Any]]) -> str:
    """A column for each label that differs; what all share stands above."""
    metrics = [names_text(row["metric"]) for row in result]
    if len(metrics) == 1:
        return f"{_series(result[0]['metric'])}  {result[0]['value'][1]}"
    raw = [row["metric"] for row in result]
    shared = dict(set(raw[0].items()).intersection(*(m.items() for m in raw[1:])))
    names = list(dict.fromkeys(name for m in metrics for name in sorted(m) if name not in shared))
    rows = [[*(m.get(name, "") for name in names), row["value"][1]] for m, row in zip(metrics, result, strict=True)]
    head = [*("metric" if name == "__name__" else name_text(name) for name in names), "value"]
    text = table(head, rows, right=(len(names),))
    return f"{_series(shared)}\n{text}" if shared else text


def _series(metric: dict[str, str]) -> str:
    """Escapes of the name come after PromQL's own, so that none is escaped twice."""
    whole = str(Labels.of({name: shortened(value) for name, value in metric.items()}))
    return printable(whole)


def _points(values: Sequence[Sample]) -> str:
    return table((), [[rfc3339(round(t * 1000)), v] for t, v in values], right=(1,), indent="  ")
