"""Prometheus text pages: classic text 0.0.4 and OpenMetrics 1.0, with a fast path for pages seen before."""

from probes.exposition.line import ExpositionError, Family, Metadata, Sample, parse_comment, parse_sample, parse_value
from probes.exposition.page import Limits, Page, PageParser

__all__ = [
    "ExpositionError",
    "Family",
    "Limits",
    "Metadata",
    "Page",
    "PageParser",
    "Sample",
    "parse_comment",
    "parse_sample",
    "parse_value",
]
