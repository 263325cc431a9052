"""Canonical ``kv:*`` signals: the vocabulary, the engines' rule files, and their inlining into expressions."""

from probes.rules.canonical import CanonicalEntry, Vocabulary
from probes.rules.errors import ExpansionError, RuleError
from probes.rules.rule import Alternative, Relabel, Rule
from probes.rules.ruleset import RuleSet

__all__ = ["Alternative", "CanonicalEntry", "ExpansionError", "Relabel", "Rule", "RuleError", "RuleSet", "Vocabulary"]
