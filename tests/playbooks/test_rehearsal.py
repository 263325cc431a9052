"""Every fixture of every playbook is played: it hits its own, passes over look-alikes, and says unknown when blind."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from playbooks.lab.shelf import Shelf
from playbooks.playbook import Fixture, Playbook, load_playbooks
from playbooks.rehearse import Diagnosed, diagnose_file, rehearse
from playbooks.verdict import Verdict
from probes.rules import RuleSet

CATALOGUE = load_playbooks()
IDS = [playbook.id for playbook in CATALOGUE]
HITS = [(playbook.id, hit) for playbook in CATALOGUE for hit in playbook.fixtures["hit"]]
INTERVAL_S = 5
# Onset is read from ranges of three scrape intervals; a condition may need one more to show.
SLACK_INTERVALS = 4
# The lab's truth is when the load or the leak began. A pool or a queue fills first; the finding begins when it is full.
FILLS_FIRST = frozenset(("kv-capacity-exhausted", "pool-leak", "preemption-thrash", "traffic-surge"))
FILL_INTERVALS = 12
# One leaked session is none: the excess must outgrow chance, and the first must have lain idle for a minute.
LEAK_INTERVALS = 36
# Hits whose decisive pattern rests on more than policy; a weaker pattern that also holds must not stand in for it.
LIKELY = frozenset(
    (
        "internal-fragmentation", "kv-capacity-exhausted", "preemption-thrash", "prefix-capacity-miss", "source-blind",
        "stuck-transfer", "traffic-surge", "descriptor-explosion", "roce-loss", "wrong-transport",
        "hbm-bandwidth-bound", "clock-throttle", "pcie-downtrained", "pcie-saturated-by-offload", "pcie-signal-errors",
        "nvlink-errors",
    )
)  # fmt: skip


@pytest.fixture(scope="module")
def diagnosed() -> Diagnosed:
    return {}


@pytest.mark.parametrize("cause", IDS)
def test_every_fixture_passes(cause: str, playbooks: list[Playbook], shelf_folder: Path, diagnosed: Diagnosed) -> None:
    played = list(rehearse(playbooks, [cause], shelf_folder, diagnosed))
    fixtures = next(p.fixtures for p in playbooks if p.id == cause)
    assert len(played) == sum(map(len, fixtures.values()))
    assert {one.kind for one in played} == {"hit", "lookalike", "missing"}
    assert [str(one) for one in played if not one.passed] == []


def test_a_fixture_that_expects_the_wrong_thing_fails(playbooks: list[Playbook], shelf_folder: Path) -> None:
    victim = next(p for p in playbooks if p.id == "engine-crash")
    wrong = {
        "hit": (Fixture("healthy-rolling-restart", expect="healthy"),),
        "lookalike": (Fixture("engine-crash", 1, expect="healthy"),),
        "missing": (Fixture("healthy-rolling-restart", expect="healthy"),),
    }
    changed = [dataclasses.replace(p, fixtures=wrong) if p is victim else p for p in playbooks]
    played = {one.kind: one for one in rehearse(changed, ["engine-crash"], shelf_folder)}
    assert not played["lookalike"].passed, "a finding where none is expected"
    assert not played["missing"].passed, "a cause that can be decided is not unknown"
    assert str(played["lookalike"]).startswith("FAIL engine-crash lookalike: engine-crash seed 1: expected healthy")


@pytest.mark.parametrize(("cause", "hit"), HITS, ids=[f"{cause}-{hit.scenario}-{hit.seed}" for cause, hit in HITS])
def test_the_onset_and_the_strength_are_right(
    cause: str, hit: Fixture, playbooks: list[Playbook], rules: RuleSet, shelf_folder: Path, diagnosed: Diagnosed
) -> None:
    shelf = Shelf(shelf_folder)
    truth = shelf.composed(hit.scenario, hit.seed).truth
    known = diagnosed.get((hit.scenario, hit.seed, tuple(hit.drop)))
    diagnosis = known or diagnose_file(shelf.path(hit.scenario, hit.seed), playbooks, rules)
    assert [f.cause for f in diagnosis.findings][:1] == [cause]
    # A store counts what an engine only lets one estimate.
    assert (diagnosis.findings[0].verdict is Verdict.LIKELY) == (cause in LIKELY or hit.scenario.startswith("store-"))
    onset_ms = diagnosis.findings[0].onset_ms
    if truth.onset_s is None:
        assert onset_ms is None, "it held before the window began"
        return
    assert onset_ms is not None
    late_s = (onset_ms - diagnosis.start_ms) / 1000 - truth.onset_s
    allowed = FILL_INTERVALS if cause in FILLS_FIRST else SLACK_INTERVALS
    allowed = LEAK_INTERVALS if cause == "session-leak" else allowed
    assert -SLACK_INTERVALS * INTERVAL_S <= late_s <= allowed * INTERVAL_S
