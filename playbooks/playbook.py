"""A playbook: one root cause, as a machine tests it and as a person reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from playbooks.frontmatter import Document, FrontMatterError, read_document
from playbooks.terms import expand

SCOPES: Mapping[str, tuple[str, ...]] = {
    "engine": ("instance", "engine"),
    "shard": ("instance", "shard"),
    "session_class": ("model_name", "session_class"),
    "target": ("instance",),
    "exporter": ("instance", "job"),
    "endpoint": ("instance",),
    "gpu": ("instance", "gpu"),
    "device": ("instance", "device"),
    "model": ("model_name",),
    "fleet": (),
}
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d|w)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
DEFAULT_HOLD_MS = 60_000


def duration_ms(text: str) -> int:
    """Milliseconds of a Prometheus duration such as ``1m30s``."""
    return sum(int(n) * _UNIT_MS[unit] for n, unit in _DURATION.findall(text))


@dataclass(frozen=True, slots=True)
class Test:
    """A question with a yes, a no, or no answer: ``expr op threshold`` for each member."""

    name: str
    expr: str
    op: str
    threshold: float
    basis: str
    source: str
    says: str
    kind: str = "metrics"
    relative_to: str | None = None
    needs: str = ""
    enable: str = ""

    @property
    def is_policy(self) -> bool:
        return self.basis == "policy"


@dataclass(frozen=True, slots=True)
class Refuter:
    """When ``test`` holds, it is the look-alike ``means`` and not this cause."""

    test: str
    means: str
    says: str = ""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One way in which the cause shows itself, on members of one scope."""

    id: str
    scope: str
    requires: tuple[str, ...]
    supports: tuple[str, ...] = ()
    refutes: tuple[Refuter, ...] = ()
    at_most: str = "confirmed"
    hold_ms: int = DEFAULT_HOLD_MS
    past: bool = False
    only_with: tuple[str, ...] = ()
    least_ms: int = 0
    says: str = ""

    @property
    def member_labels(self) -> tuple[str, ...]:
        return SCOPES[self.scope]


@dataclass(frozen=True, slots=True)
class Formula:
    """A cost or a what-if: PromQL whose value for the member is shown."""

    name: str
    expr: str
    unit: str = ""
    says: str = ""


@dataclass(frozen=True, slots=True)
class Alert:
    expr: str
    for_: str
    severity: str
    symptom: bool = False


@dataclass(frozen=True, slots=True)
class Fixture:
    scenario: str
    seed: int = 0
    drop: tuple[str, ...] = ()
    expect: str = ""


@dataclass(frozen=True, slots=True)
class Confirm:
    command: str
    safety: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What a finding is called, and what to do about it."""

    title: str
    remedies: tuple[str, ...]
    confirm: tuple[Confirm, ...]


@dataclass(frozen=True)
class Playbook:
    id: str
    title: str
    summary: str
    severity: str
    tests: Mapping[str, Test]
    patterns: tuple[Pattern, ...]
    explains: tuple[str, ...]
    explains_elsewhere: tuple[str, ...]
    cost: tuple[Formula, ...]
    what_if: tuple[Formula, ...]
    remedies: tuple[str, ...]
    confirm: tuple[Confirm, ...]
    alert: Alert | None
    fixtures: Mapping[str, tuple[Fixture, ...]]
    body: str = ""
    path: str = ""
    limit: bool = False
    for_scope: Mapping[str, Advice] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def member_labels(self) -> tuple[str, ...]:
        return self.patterns[0].member_labels

    def advice(self, scope: str) -> Advice:
        """For a member of this scope: its own, else the playbook's."""
        return self.for_scope.get(scope) or Advice(self.title, self.remedies, self.confirm)


def build(document: Document) -> Playbook:
    """Turn validated front matter into a playbook.

    Raises FrontMatterError (file, line, what to do) for what would make it unusable.
    """
    front = document.front
    try:
        return _build(document, front)
    except (KeyError, TypeError, ValueError, AttributeError) as broken:
        raise FrontMatterError(
            document.path, 1, f"front matter is not usable ({broken}); run `kvtop playbook lint`"
        ) from broken


def _build(document: Document, front: Mapping[str, Any]) -> Playbook:
    tests = {name: _test(name, body) for name, body in front["tests"].items()}
    patterns = tuple(_pattern(p) for p in front["patterns"])
    for pattern in patterns:
        used = [*pattern.requires, *pattern.supports, *(r.test for r in pattern.refutes)]
        for name in used:
            if name not in tests:
                line = document.line("patterns")
                raise FrontMatterError(document.path, line, f"pattern {pattern.id!r} names no test {name!r}; add it")
    alert = front.get("alert")
    own = _advice(front)
    return Playbook(
        id=str(front["id"]),
        title=own.title,
        summary=" ".join(str(front["summary"]).split()),
        severity=str(front["severity"]),
        tests=tests,
        patterns=patterns,
        explains=tuple(front.get("explains", ())),
        explains_elsewhere=tuple(front.get("explains_elsewhere", ())),
        cost=tuple(
            Formula(n, _flat(c["expr"]), str(c["unit"]), str(c.get("says", ""))) for n, c in front["cost"].items()
        ),
        what_if=tuple(
            Formula(str(w["change"]), _flat(w["expr"]), "", str(w["says"])) for w in front.get("what_if", ())
        ),
        remedies=own.remedies,
        confirm=own.confirm,
        alert=None
        if alert is None
        else Alert(
            _flat(alert["expr"]),
            str(alert["for"]),
            str(alert.get("severity", front["severity"])),
            bool(alert.get("symptom", False)),
        ),
        fixtures={
            kind: tuple(
                Fixture(str(f["scenario"]), int(f.get("seed", 0)), tuple(f.get("drop", ())), str(f.get("expect", "")))
                for f in front["fixtures"].get(kind, ())
            )
            for kind in ("hit", "lookalike", "missing")
        },
        body=document.body,
        path=document.path,
        limit=bool(front.get("limit", False)),
        for_scope={scope: _advice(told) for scope, told in front.get("for_scope", {}).items()},
    )


def _advice(told: Mapping[str, Any]) -> Advice:
    return Advice(
        str(told["title"]),
        tuple(" ".join(str(r).split()) for r in told["remedies"]),
        tuple(Confirm(str(c["command"]), str(c["class"])) for c in told["confirm"]),
    )


def _flat(expr: Any) -> str:
    return expand(str(expr))


def _test(name: str, body: Mapping[str, Any]) -> Test:
    return Test(
        name=name,
        expr=_flat(body["expr"]),
        op=str(body["op"]),
        threshold=float(body["threshold"]),
        basis=str(body["basis"]),
        source=str(body["source"]),
        says=" ".join(str(body["says"]).split()),
        kind=str(body.get("kind", "metrics")),
        relative_to=body.get("relative_to"),
        needs=str(body.get("needs", "")),
        enable=str(body.get("enable", "")),
    )


def _pattern(body: Mapping[str, Any]) -> Pattern:
    return Pattern(
        id=str(body["id"]),
        scope=str(body["scope"]),
        requires=tuple(body["requires"]),
        supports=tuple(body.get("supports", ())),
        refutes=tuple(Refuter(r["test"], r["means"], str(r.get("says", ""))) for r in body.get("refutes", ())),
        at_most=str(body.get("at_most", "confirmed")),
        hold_ms=duration_ms(body["hold"]) if "hold" in body else DEFAULT_HOLD_MS,
        past=bool(body.get("past", False)),
        only_with=tuple(body.get("only_with", ())),
        least_ms=duration_ms(body["least"]) if "least" in body else 0,
        says=str(body.get("says", "")),
    )


class Readable(Protocol):
    """What a packaged resource and a path have in common."""

    @property
    def name(self) -> str: ...
    def read_text(self, encoding: str | None = None) -> str: ...


def catalog() -> list[Document]:
    """The documents of the packaged catalogue, by name."""
    folder = Path(__file__).with_name("catalog")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".md")), key=lambda f: f.name)
    return [read_document(str(f), f.read_text(encoding="utf-8")) for f in files]


def documents(folders: Iterable[Path]) -> list[Document]:
    """The documents of users' folders. Raises FrontMatterError for a folder that is not there, or a file
    that cannot be read."""
    found: list[Document] = []
    for folder in folders:
        if not folder.is_dir():
            raise FrontMatterError(str(folder), 0, "is no folder; give one that holds playbooks (*.md)")
        found.extend(_document(path) for path in sorted(folder.glob("*.md")))
    return found


def _document(path: Path) -> Document:
    try:
        return read_document(str(path), path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise FrontMatterError(str(path), 0, "is not UTF-8 text; give a Markdown file") from None
    except OSError as error:
        words = (error.strerror or str(error)).lower()
        raise FrontMatterError(str(path), 0, f"cannot be read ({words}); give a readable Markdown file") from None


def load_playbooks(folders: Sequence[Path] = (), *, packaged: bool = True) -> list[Playbook]:
    """The packaged playbooks and those of ``folders``; a user's playbook replaces a packaged one of the same id."""
    found = {p.id: p for p in map(build, catalog())} if packaged else {}
    found.update((p.id, p) for p in map(build, documents(folders)))
    return list(found.values())
