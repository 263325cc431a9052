"""What the lines of one page have in common: metric names, and label sets that many names stand before."""

from __future__ import annotations

from collections.abc import Callable

from probes.exposition.line import plain_labels, plain_name
from probes.labels import Labels

Dress = Callable[[dict[str, str]], Labels]


class CommonParts:
    """Reads the label parts of one page, each name and each text in braces once: sixteen engines' six thousand series
    have some eight hundred label sets.

    ``dress`` makes a label set without a name of what stands in the braces, and may add labels of its own.
    """

    def __init__(self, dress: Dress) -> None:
        self._dress = dress
        self._names: dict[bytes, str] = {}
        self._sets: dict[bytes, Labels] = {}

    def labels(self, part: bytes) -> Labels | None:
        """The label set of a label part that is written as nearly all are; None for any other."""
        name, brace, inside = part.partition(b"{")
        metric = self._names.get(name) or self._name(name)
        bare = self._sets.get(inside)
        if bare is None:
            bare = self._set(brace, inside)
        return bare.named(metric) if metric and bare is not None else None

    def _name(self, text: bytes) -> str:
        found = plain_name(text)
        if found:
            self._names[text] = found
        return found

    def _set(self, brace: bytes, inside: bytes) -> Labels | None:
        found = plain_labels(inside) if brace else {}
        if found is None:
            return None
        made = self._sets[inside] = self._dress(found)
        return made
