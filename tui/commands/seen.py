"""Which canonical names which instances have, looked up in the store: a reading's hundred queries would cost more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probes.rules import RuleSet
    from probes.series import SeriesStore

SPAN_MS = 300_000  # as a query's lookback


def seen(store: SeriesStore, rules: RuleSet, names: Iterable[str], at_ms: int) -> dict[str, frozenset[str]]:
    """Canonical name to the instances with a sample of one of its raw series in the five minutes before ``at_ms``."""
    raw: dict[str, frozenset[str]] = {}
    found: dict[str, frozenset[str]] = {}
    for name in dict.fromkeys(names):
        sources = rules.sources(name)
        for source in sources:
            if source not in raw:
                raw[source] = _instances(store, source, at_ms)
        found[name] = frozenset().union(*(raw[source] for source in sources))
    return found


def _instances(store: SeriesStore, name: str, at_ms: int) -> frozenset[str]:
    there = set()
    for frame in store.frames:
        for row in frame.rows_named(name):
            labels = frame.label_at(row)
            instance = labels.get("instance")
            if instance not in there:
                latest = frame.latest(labels, at_ms)
                if latest is not None and latest[0] >= at_ms - SPAN_MS:
                    there.add(instance)
    return frozenset(there)
