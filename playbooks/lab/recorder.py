"""Scrapes become one OpenMetrics text with timestamps, as a Prometheus would have recorded them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .exposition import Family, LabelPairs, braces, merged

_UNITS = ("bytes", "seconds")


@dataclass(slots=True)
class _Track:
    kind: str
    series: dict[tuple[str, LabelPairs], list[tuple[int, float]]] = field(default_factory=dict)


class Recorder:
    """Collects families scrape by scrape; ``text()`` is the recording, families contiguous, ``# EOF`` at the end."""

    def __init__(self) -> None:
        self._tracks: dict[str, _Track] = {}

    def add(self, families: Iterable[Family], time_ms: int, target: LabelPairs) -> None:
        """Append one scrape of one target; ``target`` are the labels that a Prometheus adds (job, instance)."""
        for family in families:
            track = self._tracks.get(family.name)
            if track is None:
                track = self._tracks[family.name] = _Track(family.kind)
            for suffix, labels, value in family.samples:
                identity = (suffix, merged(labels, *target))
                track.series.setdefault(identity, []).append((time_ms, value))

    def names(self) -> list[str]:
        return sorted(self._tracks)

    def text(self, keep: Iterable[str] | None = None, thin: bool = True) -> str:
        """The recording. ``keep``: family names (all by default); ``thin`` leaves out buckets that say nothing."""
        wanted = set(self._tracks if keep is None else keep)
        lines: list[str] = []
        for name in self.names():
            if name in wanted:
                lines += _family_lines(name, self._tracks[name], thin)
        lines.append("# EOF\n")
        return "\n".join(lines)


def _family_lines(name: str, track: _Track, thin: bool) -> list[str]:
    lines = [f"# TYPE {name} {track.kind}"]
    unit = name.rpartition("_")[2]
    if unit in _UNITS:
        lines.append(f"# UNIT {name} {unit}")
    series = _thinned(track) if thin and track.kind == "histogram" else track.series
    for (suffix, labels), samples in _ordered(series):
        head = f"{name}{suffix}{braces(labels)} "
        lines += [f"{head}{_value(value)} {_time(time_ms)}" for time_ms, value in samples]
    return lines


def _ordered(
    series: dict[tuple[str, LabelPairs], list[tuple[int, float]]],
) -> list[tuple[tuple[str, LabelPairs], list[tuple[int, float]]]]:
    """Series of one entity together, buckets before count and sum, buckets by bound."""

    def rank(item: tuple[tuple[str, LabelPairs], object]) -> tuple[LabelPairs, int, float]:
        (suffix, labels), _samples = item
        bound = next((float(value) for key, value in labels if key == "le"), 0.0)
        rest = tuple(pair for pair in labels if pair[0] != "le")
        return rest, ("", "_total", "_bucket", "_count", "_sum").index(suffix), bound

    return sorted(series.items(), key=rank)


def _thinned(track: _Track) -> dict[tuple[str, LabelPairs], list[tuple[int, float]]]:
    """Without the buckets that always equal both neighbours: no quantile changes by that."""
    ordered = _ordered(track.series)
    kept: dict[tuple[str, LabelPairs], list[tuple[int, float]]] = {}
    below: list[tuple[int, float]] | None = None
    for index, (identity, samples) in enumerate(ordered):
        if identity[0] != "_bucket":
            kept[identity] = samples
            below = None
            continue
        last = ("le", "+Inf") in identity[1]
        above = ordered[index + 1][1]
        empty_below = below is None and not any(value for _time_ms, value in samples)
        if last or samples != above or not (samples == below or empty_below):
            kept[identity] = samples
        below = samples
    return kept


def _value(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.6g}" if abs(value) < 1 else (
        f"{value:.3f}".rstrip("0").rstrip(".")
    )  # fmt: skip


def _time(time_ms: int) -> str:
    whole, rest = divmod(time_ms, 1000)
    return str(whole) if not rest else f"{whole}.{rest:03d}"
