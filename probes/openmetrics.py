"""OpenMetrics' rules for names and types: which family a series belongs to when it is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from probes.labels import NAME, Labels
from probes.series import Metadata

_HISTOGRAM = ("_bucket", "_sum", "_count")
_SUMMARY = ("_sum", "_count")


_PLAIN = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def series_text(labels: Labels) -> str:
    """A series as a line starts with it; a name outside the classic alphabet is quoted, as Prometheus 3 does."""
    if all(_PLAIN.fullmatch(name) for name in (labels.name, *(label for label, _ in labels))):
        return str(labels)
    pairs = [f"{_quoted(name)}={_quoted(value)}" for name, value in labels if name != NAME]
    return "{" + ",".join([_quoted(labels.name), *pairs]) + "}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True)
class WrittenFamily:
    """A family as it is declared in a file."""

    name: str
    type: str


def type_line(family: WrittenFamily) -> bytes:
    return f"# TYPE {family.name} {family.type}\n".encode()


class FamilyNames:
    """Finds the family of a series name from what the pages declared, within OpenMetrics' rules.

    A counter must be named ``…_total``; one that is not is declared ``unknown``. So are ``…_created`` gauges, whose
    names OpenMetrics reserves, and every name that no page declared.
    """

    def __init__(self, metadata: Callable[[str], Metadata | None]) -> None:
        self._metadata = metadata
        self._known: dict[str, WrittenFamily] = {}

    def family(self, name: str) -> WrittenFamily:
        found = self._known.get(name)
        if found is None:
            found = self._find(name)
            if found.type != "unknown":  # an unknown one may be declared later
                self._known[name] = found
        return found

    def _find(self, name: str) -> WrittenFamily:
        if name.endswith("_total"):
            base = name.removesuffix("_total")
            if "counter" in (self._type(name), self._type(base)):
                return WrittenFamily(base, "counter")
        for kind, suffixes in (("histogram", _HISTOGRAM), ("summary", _SUMMARY)):
            for suffix in suffixes:
                base = name.removesuffix(suffix)
                if base != name and self._type(base) == kind:
                    return WrittenFamily(base, kind)
        kind = self._type(name)
        if kind == "summary":
            return WrittenFamily(name, kind)
        if kind == "gauge" and not name.endswith(("_created", "_total", "_info")):
            return WrittenFamily(name, kind)
        return WrittenFamily(name, "unknown")

    def _type(self, name: str) -> str:
        found = self._metadata(name)
        return "" if found is None else found.type
