"""The case bundles: each loads, what the issue's causes are is found, and nothing wrong is claimed of the rest.

The bundles are not part of the checkout; without ``../shared/cases`` these tests skip. The labels are read to score
only: a diagnosis gets the recording and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from playbooks.bench import signals
from playbooks.lab.trim import trim
from playbooks.playbook import Playbook, load_playbooks
from playbooks.rehearse import diagnose_file, diagnose_text
from playbooks.verdict import Diagnosis, Overall, Verdict
from probes.rules import RuleSet

FOLDER = Path(__file__).parents[1] / ".." / "shared" / "cases"
STEMS = sorted(path.stem for path in FOLDER.glob("*.om")) if FOLDER.is_dir() else []
SCORED_ENGINES = frozenset(("vllm", "vllm+nixl", "vllm+offload"))
SCORED_CAUSES = frozenset(
    (
        "kv-capacity-exhausted", "preemption-thrash", "prefix-key-unstable", "prefix-capacity-miss",
        "internal-fragmentation", "pool-leak", "stuck-transfer", "engine-crash", "traffic-surge", "source-blind",
        "wrong-transport", "roce-loss", "descriptor-explosion", "pcie-saturated-by-offload",
        "healthy", "unknown",
    )
)  # fmt: skip
SURE = frozenset((Verdict.LIKELY, Verdict.CONFIRMED))


@dataclass(frozen=True)
class Label:
    """What is known of a bundle."""

    engine: str
    cause: str
    members: tuple[Mapping[str, str], ...]
    also: frozenset[str]
    must_not: frozenset[str]

    @property
    def scored(self) -> bool:
        return self.engine in SCORED_ENGINES and self.cause in SCORED_CAUSES


def _label(stem: str) -> Label:
    told: Mapping[str, Any] = json.loads((FOLDER / f"{stem}.json").read_text(encoding="utf-8"))
    expected = told["expected"]
    members = (expected["member"], *(expected.get("member_alt") or ()))
    also, never = expected.get("also_acceptable") or (), expected.get("must_not") or ()
    return Label(told["engine"], expected["cause"], members, frozenset(also), frozenset(never))


@cache
def _playbooks() -> list[Playbook]:
    return load_playbooks()


@cache
def _rules() -> RuleSet:
    return RuleSet.load()


@cache
def _diagnosis(stem: str) -> Diagnosis:
    return diagnose_file(FOLDER / f"{stem}.om", _playbooks(), _rules())


def _told(diagnosis: Diagnosis) -> str:
    """The first finding's cause, else the overall verdict."""
    return diagnosis.findings[0].cause if diagnosis.findings else diagnosis.verdict.value


def _named(diagnosis: Diagnosis) -> set[str]:
    """Every cause named as a finding, or under one."""
    return {name for f in diagnosis.findings for name in (f.cause, *f.explains)}


SCORED = [stem for stem in STEMS if _label(stem).scored]
OTHERS = [stem for stem in STEMS if not _label(stem).scored]
FOUND = [stem for stem in SCORED if _label(stem).cause not in ("healthy", "unknown")]


def test_there_are_bundles_to_score() -> None:
    if not STEMS:
        pytest.skip("../shared/cases is not there")
    assert len(SCORED) >= 12
    assert len(FOUND) >= 6


@pytest.mark.parametrize("stem", SCORED)
def test_cause_and_member_are_right(stem: str) -> None:
    label, diagnosis = _label(stem), _diagnosis(stem)
    told = _told(diagnosis)
    assert told == label.cause or told in label.also
    assert not _named(diagnosis) & label.must_not
    if diagnosis.findings:
        member = diagnosis.findings[0].member
        assert any(right.items() <= member.items() for right in label.members), member
    if label.cause == "healthy":
        assert diagnosis.verdict is Overall.HEALTHY
        assert not diagnosis.unexplained


@pytest.mark.parametrize("stem", OTHERS)
def test_nothing_wrong_is_claimed_with_confidence(stem: str) -> None:
    label, diagnosis = _label(stem), _diagnosis(stem)
    sure = {finding.cause for finding in diagnosis.findings if finding.verdict in SURE}
    assert sure <= {label.cause, *label.also}


def _deciding_families(playbook: Playbook) -> tuple[str, ...]:
    """Every raw family that a required test of the cause can read."""
    needed = {name for pattern in playbook.patterns for name in pattern.requires}
    asked = {signal for name in needed for signal in signals(playbook.tests[name].expr)}
    return tuple(sorted({raw for signal in asked for raw in _rules().sources(signal)}))


@pytest.mark.parametrize("stem", FOUND)
def test_without_the_families_that_can_decide_it_the_cause_is_unknown(stem: str) -> None:
    found = _diagnosis(stem).findings[0]
    playbook = next(p for p in _playbooks() if p.id == found.cause)
    gone = _deciding_families(playbook)
    text = trim((FOLDER / f"{stem}.om").read_text(encoding="utf-8"), drop=gone)
    blind = diagnose_text(text, _playbooks(), _rules())
    assert found.cause not in _named(blind)
    if blind.verdict is Overall.HEALTHY:
        assert all(check.bad is False for check in blind.core if check.name != "latency")
    missing = {name for one in blind.unknown if one.cause == found.cause for name in one.missing}
    assert missing & set(gone)
