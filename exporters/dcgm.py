"""The counters for dcgm-exporter that the adapter reads: its own default leaves out what throttling and links tell."""

from __future__ import annotations

from pathlib import Path

COUNTERS = Path(__file__).parents[1] / "probes" / "engines" / "dcgm-counters.csv"


def render_counters() -> str:
    """The file as dcgm-exporter's ``-f`` takes it. The header says for which releases it is."""
    return COUNTERS.read_text(encoding="utf-8")
