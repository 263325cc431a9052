"""The canonical vocabulary as the screen needs it: what each ``kv:*`` name means, its type and unit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from probes.records import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    """One canonical name; ``kind`` is gauge, counter or histogram."""

    name: str
    kind: str
    unit: str
    group: str
    meaning: str
    labels: tuple[str, ...] = ()
    core: str = ""

    @property
    def series(self) -> str:
        """The series that shows the term is there at all: a histogram's own name is no series."""
        return f"{self.name}_count" if self.kind == "histogram" else self.name


@cache
def vocabulary() -> Mapping[str, Term]:
    """Name to ``Term``, in the order of ``canonical.yml``."""
    from probes.rules import RuleSet  # slow to import, and the first picture needs none of this

    return {
        entry.name: Term(
            name=entry.name,
            kind=entry.type,
            unit=entry.unit,
            group=entry.group,
            meaning=entry.meaning,
            labels=entry.labels,
            core=entry.core,
        )
        for entry in RuleSet.load().vocabulary
    }
