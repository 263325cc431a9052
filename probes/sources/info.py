"""Numbers that engines put into labels of info metrics, taken out as gauges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from probes.labels import Labels
from probes.records import dataclass
from probes.rules.packed import packed

# A path, not importlib.resources: that costs every start 9 ms.
_TABLE = Path(__file__).parents[1] / "engines" / "info_labels.yml"
_FLAGS = {"true": 1.0, "false": 0.0}
_TARGET_LABELS = ("job", "instance")


@dataclass(frozen=True, slots=True)
class InfoLabels:
    """Which labels of which info metric become gauges: ``{metric: (labels, kept labels)}``."""

    metrics: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]

    @classmethod
    def of(cls, raw: Mapping[str, Mapping[str, list[str]]]) -> InfoLabels:
        return cls({name: (tuple(spec["labels"]), tuple(spec.get("keep", ()))) for name, spec in raw.items()})

    def derive(self, labels: Labels, keep: Iterable[str] = ()) -> tuple[tuple[Labels, float], ...]:
        """The gauges ``<info name>:<label>`` that an info series stands for, with their constant values.

        ``True`` and ``False`` count as 1 and 0; a label that is absent or no finite number gives nothing. ``keep`` adds
        labels (those that the target's configuration sets) to the ones that the table keeps.
        """
        spec = self.metrics.get(labels.name)
        if spec is None:
            return ()
        kept = labels.only((*spec[1], *_TARGET_LABELS, *keep)).as_dict()
        found = ((label, number(labels.get(label))) for label in spec[0])
        return tuple((Labels.of(kept, name=f"{labels.name}:{label}"), n) for label, n in found if n is not None)


def number(text: str) -> float | None:
    """The finite number that a label value spells, or None."""
    flag = _FLAGS.get(text.lower())
    if flag is not None:
        return flag
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


@lru_cache(maxsize=1)
def info_labels() -> InfoLabels:
    """The table that ships with the package, ``engines/info_labels.yml``."""
    found = packed()
    if found is not None:
        return InfoLabels.of(found.info)
    import yaml

    return InfoLabels.of(yaml.safe_load(_TABLE.read_text("utf-8")))
