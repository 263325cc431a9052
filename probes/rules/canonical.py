"""The canonical vocabulary: what each ``kv:*`` name means, in which type and unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from probes.records import dataclass

if TYPE_CHECKING:
    from probes.rules.document import Document, Position

PREFIX = "kv:"
SUFFIXES = ("_bucket", "_sum", "_count")
TYPES = ("gauge", "counter", "histogram")
CORE_SETS = ("", "capacity", "queue", "preemption", "latency", "freshness")
_FIELDS = frozenset({"type", "unit", "group", "meaning", "labels", "core"})


@dataclass(frozen=True, slots=True)
class CanonicalEntry:
    """One entry of ``canonical.yml``: a gauge, a counter, or a histogram that stands for three series names."""

    name: str
    type: str
    unit: str
    group: str
    meaning: str
    labels: tuple[str, ...] = ()
    core: str = ""

    @property
    def series(self) -> tuple[str, ...]:
        """The series names: the name itself, or a histogram's ``_bucket``, ``_sum`` and ``_count``."""
        return tuple(self.name + s for s in SUFFIXES) if self.type == "histogram" else (self.name,)


class Vocabulary:
    """The canonical entries, found by entry name or by series name."""

    def __init__(self, entries: Mapping[str, CanonicalEntry]) -> None:
        self._entries = dict(entries)
        self._by_series = {series: e for e in entries.values() for series in e.series}

    @classmethod
    def read(cls, documents: list[Document]) -> Vocabulary:
        """Merge vocabulary documents; a later one may add names, and may not change one. Errors: ``RuleError``."""
        entries: dict[str, CanonicalEntry] = {}
        for document in documents:
            for key, value in document.mapping(document.root).items():
                entry = _entry(key, value, document)
                if entries.setdefault(key, entry) != entry:
                    raise document.error(f"{key} is there already with another meaning: give it another name", value)
        return cls(entries)

    def __iter__(self) -> Iterator[CanonicalEntry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> CanonicalEntry | None:
        """The entry of an entry name or a series name."""
        return self._by_series.get(name) or self._entries.get(name)

    def knows_series(self, name: str) -> bool:
        return name in self._by_series

    def refusal(self, name: str) -> str:
        """Why ``name`` is no canonical series, and what was perhaps meant."""
        entry = self._entries.get(name)
        if entry is not None:
            return f"{name} is a histogram: ask for {name}_bucket, {name}_sum or {name}_count"
        import difflib  # 10 ms that only a mistake costs

        nearest = difflib.get_close_matches(name, list(self._by_series), n=1, cutoff=0.6)
        hint = f"; did you mean {nearest[0]}?" if nearest else "; `kvtop rules` lists the known names"
        return f"unknown canonical name {name}{hint}"


def _entry(name: str, at: Position, document: Document) -> CanonicalEntry:
    if not name.startswith(PREFIX):
        raise document.error(f"{name}: a canonical name begins with {PREFIX}", at)
    raw = document.plain(at)
    if not isinstance(raw, dict) or not _FIELDS.issuperset(raw):
        raise document.error(f"{name}: expected a mapping of {', '.join(sorted(_FIELDS))}", at)
    missing = [f for f in ("type", "unit", "group", "meaning") if not isinstance(raw.get(f), str) or not raw[f]]
    if missing:
        raise document.error(f"{name}: {missing[0]} is missing or no text", at)
    labels, core = raw.get("labels", []), raw.get("core", "")
    if not isinstance(labels, list) or not all(isinstance(x, str) for x in labels):
        raise document.error(f"{name}: labels must be a list of label names", at)
    if raw["type"] not in TYPES:
        raise document.error(f"{name}: type {raw['type']} is none of {', '.join(TYPES)}", at)
    if core not in CORE_SETS:
        raise document.error(f"{name}: core {core} is none of {', '.join(CORE_SETS[1:])}", at)
    if (raw["type"] == "counter") != name.endswith("_total"):
        raise document.error(f"{name}: a counter ends in _total, and nothing else does", at)
    return CanonicalEntry(name, raw["type"], raw["unit"], raw["group"], raw["meaning"], tuple(labels), core)
