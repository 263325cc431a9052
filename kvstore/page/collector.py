"""The custom collector: a shard's parts and counters as Prometheus families, and those as a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client import Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from kvstore.page.figures import PageSource, Snapshot
from kvstore.page.sections import sections


class Page(NamedTuple):
    """An answer to a scrape."""

    body: bytes
    content_type: str


class StoreCollector(Collector):
    """Reads one shard whenever it is asked; keeps nothing."""

    def __init__(self, source: PageSource) -> None:
        self._source = source
        self._process = ProcessCollector(registry=None)

    def snapshot(self) -> Snapshot:
        """Read the shard's parts: quick, and only from the shard's own thread."""
        return Snapshot.of(self._source)

    def collect(self) -> Iterator[Metric]:
        """All families now, as a registry asks for them; from the shard's own thread."""
        yield from self._families(self.snapshot())

    def render(self, snapshot: Snapshot, accept: str) -> Page:
        """OpenMetrics with exemplars where `accept` (the header) names it, else classic text; from any thread."""
        encode, content_type = choose_encoder(accept)
        return Page(encode(_Collected(self._families(snapshot))), content_type)

    def _families(self, snapshot: Snapshot) -> Iterator[Metric]:
        for family in sections(snapshot, self._source.meters):
            if family.samples:
                yield family
        for family in self._process.collect():
            for sample in family.samples:
                sample.labels["shard"] = snapshot.identity.shard
            yield family


class _Collected(Collector):
    """Families that were read already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
