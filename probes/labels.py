"""Interned label sets: the identity of a series, as Prometheus knows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from sys import intern
from threading import RLock
from weakref import ref

NAME = "__name__"

Pairs = tuple[tuple[str, str], ...]


class Labels:
    """An immutable, interned set of label pairs, sorted by name; equal sets are the same object.

    The metric name is the label ``__name__``. A label with an empty value is the same as no label, as in
    Prometheus' data model, and is dropped.
    """

    __slots__ = ("__weakref__", "_bare", "_held", "name", "pairs")

    pairs: Pairs
    name: str
    """The metric name, or the empty string."""
    _held: dict[str, str] | None
    _bare: Labels | None

    def __new__(cls, pairs: Pairs) -> Labels:
        held = _interned.get(pairs)
        known = None if held is None else held()
        return _intern(pairs) if known is None else known

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
    def _others(self) -> dict[str, str]:
        """The labels less the name, made when they are first asked for and shared by all names that stand before."""
        held = self._held
        if held is None:
            bare = self._bare
            held = self._held = dict(_without_name(self.pairs)) if bare is None else bare._others
        return held

    def get(self, label: str, default: str = "") -> str:
        if label == NAME:
            return self.name or default
        held = self._held
        return (self._others if held is None else held).get(label, default)

    def named(self, name: str) -> Labels:
        """The set under a metric name, which the set itself must not have yet."""
        pairs = ((NAME, name), *self.pairs)
        if self.pairs and self.pairs[0][0] < NAME:  # a capital letter comes before the underscore
            pairs = tuple(sorted(pairs))
        with _lock:
            held = _interned.get(pairs)
            known = None if held is None else held()
            return _made(pairs, name, self) if known is None else known

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
        if not self.name:
            return self
        bare = self._bare
        if bare is None:
            bare = self._bare = Labels(_without_name(self.pairs))
        return bare

    def replace(self, **labels: str) -> Labels:
        """The set with these labels set (an empty value removes one)."""
        return Labels.of({**self.as_dict(), **labels})

    def as_dict(self) -> dict[str, str]:
        return dict(self.pairs)

    def covers(self, other: Mapping[str, str]) -> bool:
        """True when every pair of ``other`` is in this set."""
        return all(self.get(k) == v for k, v in other.items())

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


class _Held(ref[Labels]):
    """A weak reference that knows its key; ``WeakValueDictionary`` takes three times as long to make one."""

    __slots__ = ("pairs",)

    pairs: Pairs


# Weak, so that label churn cannot grow it without bound.
_interned: dict[Pairs, _Held] = {}
_lock = RLock()  # a set may be found dead (``_gone``) while another is being made


def _intern(pairs: Pairs) -> Labels:
    """Make a set, once: equality is identity, so two threads must not both make it."""
    with _lock:
        held = _interned.get(pairs)
        known = None if held is None else held()
        if known is not None:
            return known
        own = tuple([(intern(label), value) for label, value in pairs])  # a list: half the time of a generator
        return _made(own, next((value for label, value in own if label == NAME), ""), None)


def _made(pairs: Pairs, name: str, bare: Labels | None) -> Labels:
    made = object.__new__(Labels)
    made.pairs, made.name, made._held, made._bare = pairs, name, None, bare
    held = _interned[pairs] = _Held(made, _gone)
    held.pairs = pairs
    return made


def _without_name(pairs: Pairs) -> Pairs:
    return tuple([pair for pair in pairs if pair[0] != NAME])


def _gone(held: _Held) -> None:
    """Nobody has the set any more; it may have been made anew meanwhile."""
    with _lock:
        if _interned.get(held.pairs) is held:
            del _interned[held.pairs]


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
