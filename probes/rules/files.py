"""Reads rule files of Prometheus' own format and holds them to the canonical layer's grammar."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from probes.promql.errors import PromQLError
from probes.promql.parse import parse
from probes.rules.canonical import PREFIX, Vocabulary
from probes.rules.document import Document, Position, Readable
from probes.rules.errors import RuleError
from probes.rules.grammar import alternatives
from probes.rules.rule import Rule

# A path, not importlib.resources: that costs every start 9 ms.
_ENGINES = Path(__file__).parents[1] / "engines"
VOCABULARY_FILE = "canonical.yml"
RULES_ENDING = ".rules.yml"
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def packaged() -> list[Readable]:
    """The engine files that ship with the package, sorted by name."""
    return sorted((f for f in _ENGINES.iterdir() if _is_ours(f.name)), key=lambda f: f.name)


def found_in(paths: Iterable[str | Path]) -> list[Path]:
    """The rule files (and vocabularies) at ``paths``: files as they are, of a directory those with our endings."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(f for f in path.iterdir() if _is_ours(f.name))
            if not inside:
                raise RuleError(f"holds no *{RULES_ENDING}: name the files so", file=str(path))
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise RuleError("no such file or directory", file=str(path))
    return found


def read_rules(document: Document, vocabulary: Vocabulary) -> list[Rule]:
    """The rules of one file in order. Errors: ``RuleError`` with file, line, rule and what to do."""
    root = document.mapping(document.root)
    _refuse_others(root, {"groups"}, document)
    if "groups" not in root:
        raise document.error("no groups: a rule file is `groups: [{name, rules: [{record, expr}]}]`", document.root)
    found: list[Rule] = []
    for at in document.sequence(root["groups"], "groups"):
        group = document.mapping(at)
        _refuse_others(group, {"name", "rules", "interval"}, document)
        if "name" not in group or "rules" not in group:
            raise document.error("a group needs name and rules", at)
        name = document.text_of(group["name"], "name")
        found += [_rule(r, name, document, vocabulary) for r in document.sequence(group["rules"], "rules")]
    return found


def _rule(at: Position, group: str, document: Document, vocabulary: Vocabulary) -> Rule:
    fields = document.mapping(at)
    if "alert" in fields:
        raise document.error("alerts belong into a playbook; a canonical rule is record, expr, labels", at)
    _refuse_others(fields, {"record", "expr", "labels"}, document)
    if "record" not in fields or "expr" not in fields:
        raise document.error("a rule needs record and expr", at)
    record = document.text_of(fields["record"], "record")
    if not record.startswith(PREFIX):
        raise document.error(f"{record}: a canonical rule records a {PREFIX}* name", fields["record"])
    if not vocabulary.knows_series(record):
        hint = f"; a new name goes into a {VOCABULARY_FILE} beside the rules"
        raise document.error(vocabulary.refusal(record) + hint, fields["record"])
    text = document.text_of(fields["expr"], "expr")
    try:
        expr = parse(text)
        found = alternatives(expr)
    except (PromQLError, RuleError) as error:
        raise document.error(str(error), fields["expr"], record) from None
    labels = _labels(fields.get("labels"), document, record)
    line = at.start_mark.line + 1
    return Rule(record, expr, found, labels, group, document.file, line, document.comment_above(at))


def _labels(at: Position | None, document: Document, record: str) -> tuple[tuple[str, str], ...]:
    if at is None:
        return ()
    found: list[tuple[str, str]] = []
    for label, value in document.mapping(at).items():
        text = document.plain(value)
        if not _LABEL.fullmatch(label) or label == "__name__":
            raise document.error(f"{label} is no label name", value, record)
        if not isinstance(text, str):
            raise document.error(f'label {label} must be text: write "{text}"', value, record)
        found.append((label, text))
    return tuple(found)


def _refuse_others(fields: dict[str, Position], known: set[str], document: Document) -> None:
    for key, value in fields.items():
        if key not in known:
            raise document.error(f"{key} is not known here: expected {', '.join(sorted(known))}", value)


def _is_ours(name: str) -> bool:
    return name.endswith(RULES_ENDING) or name == VOCABULARY_FILE
