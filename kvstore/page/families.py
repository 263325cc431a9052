"""Metric families with the labels of a shard on every sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import Metric
from prometheus_client.samples import Exemplar

from probes.instrument.histogram import Histogram

Row = tuple[tuple[str, ...], float]
"""The values of a family's own labels, and the sample."""


class Families:
    """Makes families that all carry the same constant labels."""

    def __init__(self, constant: Mapping[str, str]) -> None:
        self._constant = dict(constant)

    def simple(
        self, kind: str, name: str, text: str, names: tuple[str, ...], rows: Iterable[Row], *, suffix: str = ""
    ) -> Metric:
        """A family of one sample a row; `suffix` is what samples have behind the family's name (``_total``)."""
        family = Metric(name, text, kind)
        for values, value in rows:
            family.add_sample(name + suffix, {**self._constant, **dict(zip(names, values, strict=True))}, value)
        return family

    def gauge(self, name: str, text: str, value: float) -> Metric:
        """One gauge without labels of its own."""
        return self.simple("gauge", name, text, (), [((), value)])

    def gauges(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        """A gauge by one label."""
        return self.simple("gauge", name, text, (label,), [((key,), value) for key, value in values.items()])

    def counter(self, name: str, text: str, value: float) -> Metric:
        """One counter without labels of its own; `name` without ``_total``."""
        return self.simple("counter", name, text, (), [((), value)], suffix="_total")

    def counters(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        """A counter by one label; `name` without ``_total``."""
        rows = [((key,), value) for key, value in values.items()]
        return self.simple("counter", name, text, (label,), rows, suffix="_total")

    def info(self, name: str, text: str, rows: Iterable[Mapping[str, str]]) -> Metric:
        """An info metric; `name` without ``_info``."""
        family = Metric(name, text, "info")
        for labels in rows:
            family.add_sample(f"{name}_info", {**self._constant, **labels}, 1.0)
        return family

    def histogram(self, name: str, text: str, found: Histogram) -> Metric:
        """One histogram without labels of its own."""
        return self.histograms(name, text, "", {"": found})

    def histograms(self, name: str, text: str, label: str, by: Mapping[str, Histogram]) -> Metric:
        """A histogram by one label, with the exemplars of its buckets (OpenMetrics shows them)."""
        family = Metric(name, text, "histogram")
        for key, histogram in by.items():
            labels = {**self._constant, label: key} if label else self._constant
            state, seen = histogram.snapshot(), 0
            for bound, count, kept in zip((*state.bounds, float("inf")), state.counts, state.exemplars, strict=True):
                seen += count
                exemplar = Exemplar({"trace_id": kept.trace_id}, kept.value, round(kept.at, 3)) if kept else None
                le = {**labels, "le": "+Inf" if bound == float("inf") else repr(bound)}
                family.add_sample(f"{name}_bucket", le, seen, exemplar=exemplar)
            family.add_sample(f"{name}_count", labels, seen)
            family.add_sample(f"{name}_sum", labels, state.total)
        return family
