"""Who has a canonical series at all: looked up in the store, where a hundred queries would cost a screen's first
picture."""

from __future__ import annotations

from collections.abc import Sequence

from probes.promql.ast import VectorSelector
from probes.rules.rule import Rule
from probes.series import SeriesStore

_LABEL = "instance"


def instances(
    store: SeriesStore, series: str, rules: Sequence[Rule], at_ms: int, span_ms: int
) -> frozenset[str] | None:
    """The instances of ``count by (instance) (last_over_time(series[span]))`` at a moment.

    None where a rule writes the label itself: only the query can tell then.
    """
    alternatives = [alternative for rule in rules for alternative in rule.alternatives]
    written = {relabel.target for one in alternatives for relabel in one.relabels}
    if _LABEL in written or any(label == _LABEL for rule in rules for label, _ in rule.labels):
        return None
    selectors = [one.selector for one in alternatives] or [VectorSelector(series)]
    found: set[str] = set()
    for selector in selectors:
        for selection in store.select(selector.all_matchers):
            for labels in selection.labels:
                instance = labels.get(_LABEL)
                if instance in found:
                    continue
                newest = selection.frame.latest(labels, at_ms)
                if newest is not None and newest[0] > at_ms - span_ms:
                    found.add(instance)
    return frozenset(found)
