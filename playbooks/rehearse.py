"""A playbook's fixtures, played: it must hit its own, pass over look-alikes, and say unknown when blind."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from playbooks.engine import Case, diagnose
from playbooks.grid import Grid
from playbooks.lab.shelf import Shelf
from playbooks.lab.trim import trim
from playbooks.playbook import Fixture, Playbook
from playbooks.verdict import Diagnosis
from probes.attach import attach
from probes.rules import RuleSet

Diagnosed = dict[tuple[str, int, tuple[str, ...]], Diagnosis]
"""What was diagnosed already, by scenario, seed and what was dropped: causes share their look-alikes."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """One fixture played: what was expected of it and what came out."""

    cause: str
    kind: str
    fixture: Fixture
    expected: str
    got: str
    passed: bool

    def __str__(self) -> str:
        mark = "ok  " if self.passed else "FAIL"
        dropped = f" without {', '.join(self.fixture.drop)}" if self.fixture.drop else ""
        told = f"{self.fixture.scenario} seed {self.fixture.seed}{dropped}"
        return f"{mark} {self.cause} {self.kind}: {told}: expected {self.expected}, got {self.got}"


def rehearse(
    playbooks: Sequence[Playbook],
    causes: Sequence[str] = (),
    folder: Path | None = None,
    diagnosed: Diagnosed | None = None,
) -> Iterator[Rehearsal]:
    """Play every fixture of the named causes (of all when none is named) against the whole set of playbooks.

    ``folder`` keeps what was composed for the next time; by default a folder of the user's cache. ``diagnosed`` is
    filled, and used: pass the same one only with the same playbooks.
    """
    rules, shelf = RuleSet.load(), Shelf(folder or _cache())
    diagnosed = {} if diagnosed is None else diagnosed
    for playbook in playbooks:
        if causes and playbook.id not in causes:
            continue
        for kind, fixtures in playbook.fixtures.items():
            for fixture in fixtures:
                key = (fixture.scenario, fixture.seed, tuple(fixture.drop))
                if key not in diagnosed:
                    diagnosed[key] = _diagnosis(fixture, playbooks, rules, shelf)
                yield _play(playbook, kind, fixture, diagnosed[key], shelf)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kvscope" / "lab"


def _diagnosis(fixture: Fixture, playbooks: Sequence[Playbook], rules: RuleSet, shelf: Shelf) -> Diagnosis:
    scene = shelf.composed(fixture.scenario, fixture.seed)
    text = trim(scene.text, drop=fixture.drop) if fixture.drop else scene.text
    return diagnose_text(text, playbooks, rules)


def _play(playbook: Playbook, kind: str, fixture: Fixture, diagnosis: Diagnosis, shelf: Shelf) -> Rehearsal:
    got = diagnosis.findings[0].cause if diagnosis.findings else diagnosis.verdict.value
    expected = fixture.expect or playbook.id
    passed = got == expected
    if kind == "hit":
        member = shelf.composed(fixture.scenario, fixture.seed).truth.member
        passed = passed and all(diagnosis.findings[0].member.get(k) == v for k, v in member.items())
    if kind == "missing":
        named = {f.cause for f in diagnosis.findings}
        undecided = {u.cause for u in diagnosis.unknown}
        passed = passed and playbook.id not in named and playbook.id in undecided
        got += f" ({playbook.id} {'unknown' if playbook.id in undecided else 'not among the unknown'})"
    return Rehearsal(playbook.id, kind, fixture, expected, got, passed)


def diagnose_text(text: str, playbooks: Sequence[Playbook], rules: RuleSet) -> Diagnosis:
    """Diagnose a recording given as text, over its whole span."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fixture.om"
        path.write_text(text, encoding="utf-8")
        return diagnose_file(path, playbooks, rules)


def diagnose_file(path: Path, playbooks: Sequence[Playbook], rules: RuleSet) -> Diagnosis:
    """Diagnose a recording over its whole span. Raises ValueError for one that holds no sample."""
    attachment = attach([str(path)], rules=rules)
    try:
        span = attachment.span()
        if span is None:
            raise ValueError(f"{path} holds no sample")
        return diagnose(attachment.view, Case(Grid(*span, attachment.interval_ms)), playbooks, rules)
    finally:
        asyncio.run(attachment.close())
