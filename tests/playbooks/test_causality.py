"""A symptom is shown under its root, and what nobody accounts for stays in the open."""

from __future__ import annotations

import itertools

import pytest

from playbooks.causality import related, roots, unexplained
from playbooks.decide import Ruling
from playbooks.sweep import Bad, Check
from playbooks.verdict import Verdict
from probes.labels import Labels
from tests.playbooks.stub import OTHER, POD, ask, ruling

SLACK_MS = 10_000


def _shown(found: list[Ruling]) -> list[tuple[str, list[str]]]:
    return [(root.playbook.id, [r.playbook.id for r in under]) for root, under in roots(found, SLACK_MS)]


def test_members_are_related_when_what_both_say_agrees() -> None:
    assert related(POD, Labels.of({"instance": "pod-1:8000"}))
    assert related(Labels.of(), POD)
    assert related(Labels.of({"gpu": "0"}), POD)
    assert not related(POD, OTHER)


def test_a_symptom_goes_under_its_root() -> None:
    leak = ruling("pool-leak", explains=("kv-capacity-exhausted",), onset_s=100)
    full = ruling("kv-capacity-exhausted", onset_s=150)
    for order in itertools.permutations((leak, full)):
        assert _shown(list(order)) == [("pool-leak", ["kv-capacity-exhausted"])]


def test_a_chain_is_shown_under_its_first_link() -> None:
    chain = [
        ruling("c"),
        ruling("b", explains=("c",)),
        ruling("a", explains=("b",)),
    ]
    for order in itertools.permutations(chain):
        shown = _shown(list(order))
        assert [root for root, _ in shown] == ["a"]
        assert sorted(shown[0][1]) == ["b", "c"]


def test_a_cause_on_another_member_explains_nothing_here() -> None:
    leak = ruling("pool-leak", OTHER, explains=("kv-capacity-exhausted",))
    assert len(_shown([leak, ruling("kv-capacity-exhausted")])) == 2


def test_unless_it_says_that_it_shows_elsewhere() -> None:
    leak = ruling("pool-leak", OTHER, explains_elsewhere=("engine-crash",))
    assert _shown([leak, ruling("engine-crash")]) == [("pool-leak", ["engine-crash"])]


@pytest.mark.parametrize(
    ("began_s", "showed_s", "roots_shown"),
    [(100, 150, 1), (150, 145, 1), (150, 100, 2), (None, 100, 1), (150, None, 1)],
)
def test_a_cause_that_began_clearly_later_cannot_explain(
    began_s: float | None, showed_s: float | None, roots_shown: int
) -> None:
    leak = ruling("pool-leak", explains=("kv-capacity-exhausted",), onset_s=began_s)
    full = ruling("kv-capacity-exhausted", onset_s=showed_s)
    assert len(_shown([leak, full])) == roots_shown


@pytest.mark.parametrize(
    ("cause", "effect", "roots_shown"),
    [
        (Verdict.SUSPECTED, Verdict.LIKELY, 1),
        (Verdict.SUSPECTED, Verdict.CONFIRMED, 2),
        (Verdict.CONFIRMED, Verdict.SUSPECTED, 1),
    ],
)
def test_a_mere_suspicion_does_not_hide_what_is_confirmed(cause: Verdict, effect: Verdict, roots_shown: int) -> None:
    found = [ruling("a", verdict=cause, explains=("b",)), ruling("b", verdict=effect)]
    assert len(_shown(found)) == roots_shown


def test_two_causes_that_explain_each_other_leave_one_standing() -> None:
    found = [ruling("a", explains=("b",)), ruling("b", explains=("a",))]
    assert len(_shown(found)) == 1
    assert len(_shown(found[::-1])) == 1


def test_the_most_important_comes_first() -> None:
    found = [
        ruling("over", verdict=Verdict.CONFIRMED, severity="critical", onset_s=10, ended_s=60),
        ruling("weak", verdict=Verdict.SUSPECTED, severity="critical", onset_s=10),
        ruling("late", severity="critical", onset_s=90),
        ruling("mild", severity="info", onset_s=10),
        ruling("early", severity="critical", onset_s=20),
        ruling("always", severity="critical"),
        ruling("sure", verdict=Verdict.CONFIRMED, severity="info"),
    ]
    order = ["sure", "always", "early", "late", "mild", "weak", "over"]
    assert [cause for cause, _ in _shown(found)] == order
    assert [cause for cause, _ in _shown(found[::-1])] == order


def _bad(symptom: str, member: Labels = POD, core: str | None = None) -> Bad:
    return Bad(Check(ask(symptom), "engine", core, sticky=False), member, 2.0, "it is bad")


def test_what_no_finding_accounts_for_is_unexplained() -> None:
    queue, failures = _bad("queue", core="queue"), _bad("transfer-failures")
    full = ruling("kv-capacity-exhausted", explains=("symptom:queue",))
    assert unexplained([queue, failures], [full]) == [failures]
    assert unexplained([queue, failures], []) == [queue, failures]


def test_a_symptom_on_another_member_stays_unexplained() -> None:
    full = ruling("kv-capacity-exhausted", explains=("symptom:queue",))
    assert len(unexplained([_bad("queue", OTHER, "queue")], [full])) == 1
    crash = ruling("engine-crash", explains_elsewhere=("symptom:queue",))
    assert unexplained([_bad("queue", OTHER, "queue")], [crash]) == []


def test_a_core_check_is_explained_by_the_name_of_its_question() -> None:
    full = ruling("kv-capacity-exhausted", explains=("symptom:latency",))
    assert unexplained([_bad("inter-token", core="latency")], [full]) == []
