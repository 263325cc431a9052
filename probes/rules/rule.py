"""One recording rule of the canonical layer, taken apart."""

from __future__ import annotations

from probes.promql.ast import Expr, VectorSelector
from probes.records import dataclass


@dataclass(frozen=True, slots=True)
class Relabel:
    """One ``label_replace(…, target, replacement, source, regex)`` of the shapes that a matcher can be pushed through.

    ``copies`` is False for a constant (``replacement`` is the value, empty removes the label) and True for ``$1`` of
    ``(.*)`` or ``(.+)``: the source's value becomes the target's.
    """

    target: str
    replacement: str
    source: str = ""
    regex: str = ""

    @property
    def copies(self) -> bool:
        return self.replacement == "$1"

    @property
    def always(self) -> bool:
        """True when every series is relabelled, whatever its labels."""
        return self.regex in (".*", "(.*)") or (self.source == "" and self.regex == "")


@dataclass(frozen=True, slots=True)
class Alternative:
    """``[scale * ] selector`` in label_replace wrappers (innermost first)."""

    selector: VectorSelector
    """Always with a metric name."""
    scale: float = 1.0
    relabels: tuple[Relabel, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A recording rule: the alternatives in order of preference, and the labels set on the result."""

    record: str
    expr: Expr
    alternatives: tuple[Alternative, ...]
    labels: tuple[tuple[str, str], ...]
    group: str
    file: str
    line: int
    comment: str = ""

    @property
    def raw_names(self) -> tuple[str, ...]:
        """The metric names that it reads, in order of preference, each once."""
        return tuple(dict.fromkeys(a.selector.name or "" for a in self.alternatives))
