"""Where a number comes from: expression, what it expands to, raw series behind it, window, age of the oldest input."""

from __future__ import annotations

from dataclasses import dataclass

from probes.labels import Labels


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
