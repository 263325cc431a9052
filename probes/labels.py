"""Interned label sets: the identity of a series, as Prometheus knows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from sys import intern
from threading import Lock
from weakref import WeakValueDictionary

NAME = "__name__"

Pairs = tuple[tuple[str, str], ...]


class Labels:
    """An immutable, interned set of label pairs, sorted by name; equal sets are the same object.

    The metric name is the label ``__name__``. A label with an empty value is the same as no label, as in
    Prometheus' data model, and is dropped.
    """

    __slots__ = ("__weakref__", "_lookup", "pairs")

    pairs: Pairs
    _lookup: dict[str, str]

    def __new__(cls, pairs: Pairs) -> Labels:
        known = _interned.get(pairs)
        return known if known is not None else _intern(pairs)

    @classmethod
    def of(cls, labels: Mapping[str, str] | Iterable[tuple[str, str]] = (), name: str | None = None) -> Labels:
        """Build from a mapping or pairs in any order; ``name`` sets ``__name__``."""
        found = dict(labels)
        if name is not None:
            found[NAME] = name
        if "" in found.values():
            found = {k: v for k, v in found.items() if v != ""}
        return cls(tuple(sorted(found.items())))

    @property
    def name(self) -> str:
        """The metric name, or the empty string."""
        return self._lookup.get(NAME, "")

    def get(self, label: str, default: str = "") -> str:
        return self._lookup.get(label, default)

    def only(self, labels: Iterable[str]) -> Labels:
        """The subset with these label names."""
        keep = frozenset(labels)
        return Labels(tuple(p for p in self.pairs if p[0] in keep))

    def without(self, labels: Iterable[str]) -> Labels:
        """The set less these label names."""
        drop = frozenset(labels)
        return Labels(tuple(p for p in self.pairs if p[0] not in drop))

    def unnamed(self) -> Labels:
        """The set less the metric name."""
        return self.without((NAME,))

    def replace(self, **labels: str) -> Labels:
        """The set with these labels set (an empty value removes one)."""
        return Labels.of({**self._lookup, **labels})

    def as_dict(self) -> dict[str, str]:
        return dict(self.pairs)

    def covers(self, other: Mapping[str, str]) -> bool:
        """True when every pair of ``other`` is in this set."""
        return all(self._lookup.get(k, "") == v for k, v in other.items())

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def __reduce__(self) -> tuple[type[Labels], tuple[Pairs]]:
        return (Labels, (self.pairs,))

    def __str__(self) -> str:
        inside = ",".join(f'{k}="{_escape(v)}"' for k, v in self.pairs if k != NAME)
        return self.name + ("{" + inside + "}" if inside or not self.name else "")

    __repr__ = __str__


# Weak, so that label churn cannot grow it without bound.
_interned: WeakValueDictionary[Pairs, Labels] = WeakValueDictionary()
_lock = Lock()


def _intern(pairs: Pairs) -> Labels:
    """Make a set, once: equality is identity, so two threads must not both make it."""
    with _lock:
        known = _interned.get(pairs)
        if known is not None:
            return known
        made = object.__new__(Labels)
        made.pairs = tuple([(intern(name), value) for name, value in pairs])  # a list: half the time of a generator
        made._lookup = dict(made.pairs)
        _interned[made.pairs] = made
        return made


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
