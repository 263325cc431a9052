"""Where a number comes from: expression, what it expands to, raw series behind it, window, age of the oldest input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probes.labels import Labels
from probes.records import dataclass
from tui.panels import BY_NAME, Merge, Panel
from tui.reading import duration

if TYPE_CHECKING:
    from probes.view import View


@dataclass(frozen=True, slots=True)
class RawInput:
    """One stored series behind a number, with its newest sample at the moment (None: none)."""

    series: str
    value: float | None
    age_s: float | None


@dataclass(frozen=True, slots=True)
class Provenance:
    """The answer to "where do you come from?" for one panel and one entity.

    ``value`` is exact, not rounded; ``expanded`` is ``expr`` with canonical names replaced by raw series;
    ``oldest_age_s`` is the age of the oldest sample that the value rests on; ``trouble`` says why there is no answer.
    """

    panel: str
    entity: Labels
    at_ms: int
    window: str
    expr: str
    expanded: str = ""
    value: float | None = None
    oldest_age_s: float | None = None
    inputs: tuple[RawInput, ...] = ()
    trouble: str = ""


def explain(view: View, panel: Panel, entity: Labels, at_ms: int, window_ms: int) -> Provenance:
    """Ask the view where a panel's number for an entity (no labels: the fleet) comes from."""
    window = duration(window_ms)
    expr = panel.at(window) if entity else over_all(panel, window)
    try:
        found = view.explain(expr, at_ms, entity)
        if found.value is None and (entity.get("engine") or entity.get("shard")):
            found = view.explain(expr, at_ms, entity.only(("instance",)))
    except ValueError as error:
        return Provenance(panel.name, entity, at_ms, window, expr, trouble=str(error))
    return Provenance(
        panel.name,
        entity,
        at_ms,
        window,
        expr,
        found.expanded,
        found.value,
        None if found.oldest_age_ms is None else found.oldest_age_ms / 1000,
        tuple(
            RawInput(str(one.labels), one.value, None if one.age_ms is None else one.age_ms / 1000)
            for one in found.inputs
        ),
    )


def over_all(panel: Panel, window: str) -> str:
    """The fleet's number as one expression."""
    expr = panel.at(window)
    if panel.merge is Merge.EXPR:
        return panel.at(window, fleet=True)
    if panel.merge is Merge.TOKENS:
        tokens = BY_NAME["kv:pool_tokens"].at(window)
        return f"sum({expr} * ({tokens})) / sum({tokens})"
    return f"{'max' if panel.merge is Merge.MAX else 'sum'}({expr})"
