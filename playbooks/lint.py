"""What a playbook must have before anybody relies on it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from playbooks.bench import signals
from playbooks.frontmatter import Document, FrontMatterError, read_document
from playbooks.playbook import catalog
from playbooks.sweep import CORE, checks
from playbooks.terms import TermError, expand
from probes.promql.errors import PromQLError
from probes.promql.parse import parse
from probes.rules import RuleSet

_SECTIONS = ("Meaning", "Impact", "How to confirm", "Mitigation", "Background")
_HEADING = re.compile(r"^## +(.+?) *$", re.MULTILINE)
_FIELD = re.compile(r"\{([^{}]*)\}")
_DIGITS = re.compile(r"\d")
# A basis that claims an origin must name it; a number that we chose must say so.
_SAMPLE = {"$window": "1m", "$span": "5m", "$recent": "30s", "$interval": "5s"}


@dataclass(frozen=True, slots=True)
class Problem:
    """One defect: file, line, what is wrong and what to do."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def lint(paths: Sequence[Path] = ()) -> list[Problem]:
    """Check the packaged catalogue, or the given files and folders. An empty list means that all pass."""
    problems: list[Problem] = []
    found: list[Document] = []
    if not paths:
        found = catalog()
    for path in paths:
        found.extend(_read(path, problems))
    known = _known_causes(found)
    for document in found:
        problems.extend(lint_document(document, known))
    if not problems:
        problems.extend(_cycles(found))
    return problems


def _read(path: Path, problems: list[Problem]) -> Iterator[Document]:
    files = sorted(path.glob("*.md")) if path.is_dir() else [path]
    if not files:
        problems.append(Problem(str(path), 0, "holds no playbook; put *.md files there"))
    for file in files:
        try:
            yield read_document(str(file), file.read_text(encoding="utf-8"))
        except FrontMatterError as broken:
            problems.append(Problem(broken.path, broken.line, broken.message))
        except (OSError, UnicodeDecodeError) as broken:
            words = (getattr(broken, "strerror", None) or "it is not UTF-8 text").lower()
            problems.append(Problem(str(file), 0, f"cannot be read ({words}); give a readable Markdown file"))


@cache
def causes() -> frozenset[str]:
    """The closed set of root causes."""
    text = (resources.files("playbooks") / "causes.txt").read_text(encoding="utf-8")
    return frozenset(line.split()[0] for line in text.splitlines() if line.strip() and not line.startswith("#"))


def _known_causes(found: Iterable[Document]) -> frozenset[str]:
    return causes() | {str(d.front.get("id")) for d in found}


def lint_document(document: Document, known: frozenset[str]) -> list[Problem]:
    """Every defect of one playbook; with a broken schema, only those."""
    problems = list(_schema(document))
    if problems:
        return problems
    front = document.front
    problems += _identity(document)
    problems += _tests(document)
    problems += _patterns(document, known)
    problems += _formulas(document)
    problems += _body(document)
    for key in ("explains", "explains_elsewhere"):
        for index, name in enumerate(front.get(key, ())):
            if not _is_known(name, known):
                message = f"{key} names {name!r}, which is no root cause and no swept symptom; take one of the set"
                problems.append(Problem(document.path, document.line(key, index), message))
    return problems


def _is_known(name: str, known: frozenset[str]) -> bool:
    symptom = name.removeprefix("symptom:")
    if symptom != name:
        return symptom in CORE or symptom in {c.test.name for c in checks()}
    return name in known


def _schema(document: Document) -> Iterator[Problem]:
    from jsonschema import Draft202012Validator

    text = (resources.files("playbooks") / "schema" / "playbook.schema.json").read_text(encoding="utf-8")
    validator = Draft202012Validator(json.loads(text))
    for error in sorted(validator.iter_errors(document.front), key=lambda e: list(map(str, e.absolute_path))):
        place = tuple(error.absolute_path)
        where = ".".join(map(str, place)) or "front matter"
        extra = _extra(error)
        yield Problem(document.path, document.line(*place, *extra[:1]), f"{where}: {_plain(error)}")


def _extra(error: Any) -> list[str]:
    """Keys that the schema does not know."""
    if error.validator != "additionalProperties":
        return []
    return sorted(set(error.instance) - set(error.schema.get("properties", {})))


def _plain(error: Any) -> str:
    match error.validator:
        case "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            return f"{', '.join(map(repr, missing))} is missing; add it"
        case "additionalProperties":
            return f"unknown key {', '.join(map(repr, _extra(error)))}; remove it or mend its spelling"
        case "enum":
            return f"{error.instance!r} is none of {', '.join(map(str, error.validator_value))}"
        case "minItems" | "minProperties":
            return "is empty; give at least one"
        case _:
            return f"{error.message}; see playbooks/schema/playbook.schema.json"


def _identity(document: Document) -> Iterator[Problem]:
    name = Path(document.path).name
    if name != f"{document.front['id']}.md":
        yield Problem(
            document.path, document.line("id"), f"id {document.front['id']!r} must be the file's name, {name}"
        )


def _tests(document: Document) -> Iterator[Problem]:
    for name, test in document.front["tests"].items():
        yield from _expression(document, ("tests", name, "expr"), str(test["expr"]))
        for field in _FIELD.findall(test["says"]):
            if field.split(":")[0] not in ("value", "threshold"):
                message = f"says asks for {{{field}}}; only {{value}} and {{threshold}} are filled in"
                yield Problem(document.path, document.line("tests", name, "says"), message)
        used = any(name in _named(p) for p in document.front["patterns"])
        if not used:
            message = f"test {name!r} is used by no pattern; require, support or refute with it, or remove it"
            yield Problem(document.path, document.line("tests", name), message)
        asked = _expanded(str(test["expr"]))
        if test.get("kind", "metrics") == "metrics" and asked is not None and not signals(asked):
            message = f"test {name!r} asks for no kv:* signal; write it over canonical names"
            yield Problem(document.path, document.line("tests", name, "expr"), message)


def _named(pattern: Any) -> set[str]:
    refutes = {r["test"] for r in pattern.get("refutes", ())}
    return {*pattern["requires"], *pattern.get("supports", ()), *refutes}


def _patterns(document: Document, known: frozenset[str]) -> Iterator[Problem]:
    front = document.front
    tests = front["tests"]
    for index, pattern in enumerate(front["patterns"]):
        line = document.line("patterns", index)
        for name in _named(pattern) - set(tests):
            yield Problem(document.path, line, f"pattern {pattern['id']!r} names no test {name!r}; add it under tests")
        for refuter in pattern.get("refutes", ()):
            if refuter["means"] not in known:
                message = f"refutes means {refuter['means']!r}, which is no root cause; take one of the set"
                yield Problem(document.path, line, message)
            if refuter["means"] == front["id"]:
                yield Problem(document.path, line, "a refutation must mean another cause than this one")
    if not any(pattern.get("refutes") for pattern in front["patterns"]):
        yield Problem(document.path, document.line("patterns"), "no pattern has a refutation; name a look-alike's test")


def _formulas(document: Document) -> Iterator[Problem]:
    front = document.front
    for name, cost in front["cost"].items():
        yield from _expression(document, ("cost", name, "expr"), str(cost["expr"]))
    for index, what_if in enumerate(front.get("what_if", ())):
        yield from _expression(document, ("what_if", index, "expr"), str(what_if["expr"]))
    if "alert" in front:
        yield from _expression(document, ("alert", "expr"), str(front["alert"]["expr"]))


def _expanded(text: str) -> str | None:
    try:
        return expand(text)
    except TermError:
        return None


def _expression(document: Document, place: tuple[str | int, ...], text: str) -> Iterator[Problem]:
    line = document.line(*place)
    try:
        plain = expand(text)
        for name, value in _SAMPLE.items():
            plain = plain.replace(name, value)
        _rules().expand(parse(plain))
    except TermError as broken:
        yield Problem(document.path, line, str(broken))
    except (PromQLError, ValueError) as broken:
        where = ".".join(map(str, place))
        yield Problem(document.path, line, f"{where}: {' '.join(str(broken).split())}")


@cache
def _rules() -> RuleSet:
    return RuleSet.load()


def _body(document: Document) -> Iterator[Problem]:
    headings = _HEADING.findall(document.body)
    for section in _SECTIONS:
        if section not in headings:
            message = f"the runbook has no section '## {section}'; the person on call reads it"
            yield Problem(document.path, max(document.lines.values(), default=1) + 2, message)


def _cycles(found: Sequence[Document]) -> Iterator[Problem]:
    """A cause that, over others, explains itself would hide its own finding."""
    edges = {str(d.front["id"]): [e for e in d.front.get("explains", ()) if ":" not in e] for d in found}
    where = {str(d.front["id"]): d for d in found}

    def reach(start: str, at: str, seen: set[str]) -> bool:
        return any(n == start or (n not in seen and reach(start, n, seen | {n})) for n in edges.get(at, ()))

    for cause, document in where.items():
        if reach(cause, cause, {cause}):
            message = f"{cause} explains itself over other causes; break the circle in `explains`"
            yield Problem(document.path, document.line("explains"), message)
