"""A page of metrics as an exporter would serve it, built sample by sample. Loads nothing: helper processes use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Family:
    """Samples of one name: label text and value."""

    kind: str
    samples: list[tuple[str, float]] = field(default_factory=list)


class PageText:
    """Collects samples by family; ``text`` is the exposition."""

    def __init__(self, help_texts: Mapping[str, str]) -> None:
        self._help = help_texts
        self._families: dict[str, Family] = {}

    def add(self, name: str, kind: str, labels: Mapping[str, str], value: float | None) -> None:
        """A sample; None is no sample."""
        if value is not None:
            self._families.setdefault(name, Family(kind)).samples.append((braces(labels), value))

    def text(self) -> bytes:
        lines: list[str] = []
        for name, family in self._families.items():
            if name in self._help:
                lines.append(f"# HELP {name} {self._help[name]}")
            lines.append(f"# TYPE {name} {family.kind}")
            lines += [f"{name}{labels} {value!r}" for labels, value in family.samples]
        return "".join(f"{line}\n" for line in lines).encode()


def braces(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
