"""The canonical vocabulary as the screen needs it: what each ``kv:*`` name means, its type and unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any


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
def raw_vocabulary() -> Mapping[str, Mapping[str, Any]]:
    """``canonical.yml`` as it is written: name to ``{type, unit, group, meaning, labels?, core?}``."""
    from importlib.resources import files  # slow to import, and the first picture needs none of this

    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = files("probes").joinpath("engines", "canonical.yml").read_text(encoding="utf-8")
    loaded: Mapping[str, Mapping[str, Any]] = yaml.load(text, Loader=loader)
    return loaded


@cache
def vocabulary() -> Mapping[str, Term]:
    """Name to ``Term``, in the order of the file."""
    return {
        name: Term(
            name=name,
            kind=str(entry["type"]),
            unit=str(entry["unit"]),
            group=str(entry["group"]),
            meaning=str(entry["meaning"]),
            labels=tuple(entry.get("labels", ())),
            core=str(entry.get("core", "")),
        )
        for name, entry in raw_vocabulary().items()
    }
