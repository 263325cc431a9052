"""All rules that are loaded, and what is asked of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from probes.promql.ast import Binary, Expr
from probes.rules.canonical import CanonicalEntry, Vocabulary
from probes.rules.errors import RuleError
from probes.rules.expand import Expander
from probes.rules.packed import packed
from probes.rules.rule import Rule


class RuleSet:
    """The canonical vocabulary and the recording rules that fill it."""

    def __init__(self, vocabulary: Vocabulary, rules: Iterable[Rule]) -> None:
        self.vocabulary = vocabulary
        self.rules: tuple[Rule, ...] = tuple(_merged(rules))
        self._by_record: dict[str, list[Rule]] = {}
        for rule in self.rules:
            self._by_record.setdefault(rule.record, []).append(rule)
        self._expander = Expander(self._by_record, vocabulary)

    @classmethod
    def load(cls, paths: Sequence[str | Path] | None = None) -> RuleSet:
        """The packaged engines, and before them (preferred) the rule files or directories at ``paths``.

        A directory is read for ``*.rules.yml`` and a ``canonical.yml`` that adds names. Errors: ``RuleError``, one
        line with file, line, rule and what to do.
        """
        found = None if paths else packed()
        if found is not None:
            return cls(Vocabulary({entry.name: entry for entry in found.entries}), found.rules)
        return cls._read(paths or ())

    @classmethod
    def _read(cls, paths: Sequence[str | Path]) -> RuleSet:
        from probes.rules.document import Document
        from probes.rules.files import VOCABULARY_FILE, found_in, packaged, read_rules

        documents = [Document.read(f, f.name) for f in packaged()]
        given = [Document.read(f, str(f)) for f in found_in(paths)]
        vocabulary = Vocabulary.read([d for d in [*documents, *given] if d.file.endswith(VOCABULARY_FILE)])
        files = [d for d in [*given, *documents] if not d.file.endswith(VOCABULARY_FILE)]
        return cls(vocabulary, [rule for d in files for rule in read_rules(d, vocabulary)])

    def expand(self, expr: Expr) -> Expr:
        """``expr`` with every ``kv:*`` selector replaced by its sources; the rest is left as it is.

        A known name without a source stays: nothing is stored under it, so it is the empty vector. ``RuleError`` for
        an unknown name (with the nearest known one) or a function that cannot be pushed to the sources.
        """
        return self._expander.expand(expr)

    def canonical(self, name: str) -> CanonicalEntry:
        """The entry of a canonical name or of one of its series; ``RuleError`` naming the nearest one otherwise."""
        entry = self.vocabulary.get(name)
        if entry is None:
            raise RuleError(self.vocabulary.refusal(name))
        return entry

    def rules_of(self, series: str) -> tuple[Rule, ...]:
        """The rules that record a canonical series, in order of preference."""
        return tuple(self._by_record.get(series, ()))

    def sources(self, name: str) -> list[str]:
        """The raw metric names behind a canonical name (a histogram's: of all three series), each once."""
        series = (name,) if self.vocabulary.knows_series(name) else self.canonical(name).series
        return list(dict.fromkeys(raw for s in series for rule in self.rules_of(s) for raw in rule.raw_names))

    def raw_names(self) -> frozenset[str]:
        """Every raw metric name that some rule reads."""
        return frozenset(name for rule in self.rules for name in rule.raw_names)


def _merged(rules: Iterable[Rule]) -> Iterable[Rule]:
    """Rules that would record the same series become one, its alternatives joined: two would clash in Prometheus."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], Rule] = {}
    for rule in rules:
        key = (rule.record, tuple(sorted(rule.labels)))
        first = found.get(key)
        if first is None:
            found[key] = rule
            continue
        expr: Expr = Binary("or", first.expr, rule.expr)
        found[key] = replace(first, expr=expr, alternatives=first.alternatives + rule.alternatives)
    return found.values()
