"""A whole diagnosis: what is found, what is open, what is not known, and with which exit code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from playbooks.bench import Bench
from playbooks.engine import Case, diagnose, find_members
from playbooks.playbook import Confirm, Formula, Playbook
from playbooks.verdict import Diagnosis, Overall, SourceLine, Undecided, Verdict
from probes.labels import Labels
from probes.rules import RuleSet
from tests.playbooks.pages import Pages, engine_labels, grows
from tests.playbooks.stub import GRID, NAN, OTHER, POD, StubView, ask, pattern, playbook

SEEN = {"kv:requests_running": {POD: 1.0, OTHER: 1.0}}


def _stubbed(series: dict[str, dict[Labels, float]], *books: Playbook) -> Diagnosis:
    return diagnose(StubView({**SEEN, **series}), Case(GRID), books)


def test_a_finding_says_what_else_it_is_not() -> None:
    tests = [ask("a"), ask("r")]
    book = playbook("pool-leak", tests, pattern("a", refutes={"r": "stuck-transfer"}))
    (finding,) = _stubbed({"a": {POD: 2.0}, "r": {POD: 0.0}}, book).findings
    assert [(r.cause, r.by) for r in finding.refuted] == [("stuck-transfer", "r")]


def test_a_look_alike_that_was_refuted_stands_on_the_finding() -> None:
    leak = playbook("pool-leak", [ask("a")], pattern("a"))
    full = playbook("kv-capacity-exhausted", [ask("b"), ask("r")], pattern("b", refutes={"r": "pool-leak"}))
    diagnosis = _stubbed({"a": {POD: 2.0}, "b": {POD: 2.0}, "r": {POD: 2.0}}, leak, full)
    assert [f.cause for f in diagnosis.findings] == ["pool-leak"]
    assert [(r.cause, r.by) for r in diagnosis.findings[0].refuted] == [("kv-capacity-exhausted", "r")]


def test_a_symptom_is_listed_under_its_root() -> None:
    leak = playbook("pool-leak", [ask("a")], pattern("a"), explains=("kv-capacity-exhausted",))
    full = playbook("kv-capacity-exhausted", [ask("b")], pattern("b"))
    (finding,) = _stubbed({"a": {POD: 2.0}, "b": {POD: 2.0}}, full, leak).findings
    assert (finding.cause, finding.explains) == ("pool-leak", ("kv-capacity-exhausted",))


def test_the_strongest_pattern_speaks_for_a_cause() -> None:
    tests = [ask("weak", "policy"), ask("strong")]
    book = playbook("pool-leak", tests, pattern("weak", id="one"), pattern("strong", id="two"))
    (finding,) = _stubbed({"weak": {POD: 2.0}, "strong": {POD: 2.0}}, book).findings
    assert finding.verdict is Verdict.LIKELY


def test_a_pattern_of_an_optional_part_applies_only_where_the_part_is() -> None:
    book = playbook("stuck-transfer", [ask("kv:dark")], pattern("kv:dark", only_with=("kv:part",)))
    without = _stubbed({}, book)
    assert without.unknown == ()
    there = _stubbed({"kv:part": {POD: 1.0}}, book)
    assert [(u.cause, u.member["instance"]) for u in there.unknown] == [("stuck-transfer", "pod-1:8000")]


def test_costs_and_what_ifs_are_those_of_the_member_and_never_of_nothing() -> None:
    book = playbook(
        "pool-leak",
        [ask("a")],
        pattern("a"),
        cost=(Formula("held", "held", "blocks"), Formula("dark", "dark", "blocks")),
        what_if=(Formula("half", "held", "", "{value:.0f} blocks"), Formula("dark", "dark", "", "{value}")),
        confirm=(Confirm("curl http://$INSTANCE/metrics", "read-only"),),
    )
    (finding,) = _stubbed({"a": {POD: 2.0}, "held": {POD: 30.0, OTHER: 500.0}}, book).findings
    assert {name: (q.value, q.unit) for name, q in finding.cost.items()} == {"held": (30.0, "blocks")}
    assert finding.what_if == ("half: 30 blocks",)
    assert finding.confirm[0].command == "curl http://pod-1:8000/metrics"


def test_the_rank_is_named_only_where_an_instance_has_several() -> None:
    book = playbook("pool-leak", [ask("a")], pattern("a"))
    (finding,) = _stubbed({"a": {POD: 2.0}}, book).findings
    assert finding.member == {"instance": "pod-1:8000"}
    second = POD.replace(engine="1")
    ranks = _stubbed({"kv:requests_running": {POD: 1.0, second: 1.0}, "a": {second: 2.0}}, book)
    assert ranks.findings[0].member == {"instance": "pod-1:8000", "engine": "1"}


def test_a_cause_that_does_not_hold_says_by_which_test() -> None:
    book = playbook("pool-leak", [ask("a")], pattern("a"))
    (ruled_out,) = _stubbed({"a": {POD: 0.0, OTHER: 0.0}}, book).refuted
    assert (ruled_out.cause, ruled_out.by) == ("pool-leak", "a")


@pytest.mark.parametrize(
    ("pages", "verdict", "code"),
    [
        (Pages().engine(), Overall.HEALTHY, 0),
        (Pages().engine(usage=0.97, waiting=grows(0.1, 3.0)), Overall.FINDING, 1),
        (Pages().engine(waiting=2.0), Overall.UNKNOWN, 3),
        (Pages().engine(usage=NAN), Overall.UNKNOWN, 3),
        (Pages().target("pod-1:8000"), Overall.UNKNOWN, 3),
    ],
    ids=["healthy", "finding", "unexplained queue", "capacity undecided", "no engine"],
)
def test_verdict_and_exit_code(
    pages: Pages, verdict: Overall, code: int, playbooks: list[Playbook], rules: RuleSet
) -> None:
    diagnosis = pages.diagnose(playbooks, rules)
    assert (diagnosis.verdict, diagnosis.exit_code()) == (verdict, code)


def test_a_bad_symptom_that_no_cause_explains_is_listed(playbooks: list[Playbook], rules: RuleSet) -> None:
    diagnosis = Pages().engine(waiting=2.0).diagnose(playbooks, rules)
    (open_,) = diagnosis.unexplained
    assert (open_.resource, open_.member, open_.value) == ("queue", {"instance": "pod-1:8000"}, 2.0)
    assert "$" not in open_.expr
    assert diagnosis.findings == ()


def test_a_finding_that_accounts_for_the_symptoms_leaves_nothing_open(
    playbooks: list[Playbook], rules: RuleSet
) -> None:
    diagnosis = Pages().engine(usage=0.97, waiting=grows(0.1, 3.0)).diagnose(playbooks, rules)
    assert [f.cause for f in diagnosis.findings] == ["kv-capacity-exhausted"]
    assert diagnosis.unexplained == ()
    assert {c.name for c in diagnosis.core if c.bad} == {"capacity", "queue"}


def test_strict_turns_what_cannot_be_decided_into_exit_3(playbooks: list[Playbook], rules: RuleSet) -> None:
    diagnosis = Pages().engine().diagnose(playbooks, rules)
    assert diagnosis.unknown, "a page without a prefix cache leaves causes open"
    assert diagnosis.exit_code() == 0
    assert diagnosis.exit_code(strict=True) == 3


def test_a_finding_is_a_finding_even_when_strict() -> None:
    dark = Undecided("pool-leak", {}, ("vllm:x",))
    assert Diagnosis(Overall.FINDING, 0, 1, unknown=(dark,)).exit_code(strict=True) == 1
    assert Diagnosis(Overall.HEALTHY, 0, 1).exit_code(strict=True) == 0


DEAD = SourceLine("a:1", "refused", None, "connection refused")


@pytest.mark.parametrize(
    ("sources", "code"),
    [
        ((DEAD, SourceLine("b:1", "timeout", None, "no answer")), 4),
        ((DEAD, SourceLine("b:1", "not-exposition", None, "HTML")), 4),
        ((DEAD, SourceLine("b:1", "fresh", 0.5)), 3),
        ((SourceLine("b:1", "empty", 0.5, "an empty page"),), 3),
        ((SourceLine("b:1", "gone", 60.0, "it died"),), 3),
        ((), 3),
    ],
)
def test_nothing_collected_is_another_exit_code(sources: Sequence[SourceLine], code: int) -> None:
    assert Diagnosis(Overall.UNKNOWN, 0, 1, sources=tuple(sources)).exit_code() == code


def test_sources_stand_in_the_diagnosis_as_they_were_given(
    tmp_path: Path, playbooks: list[Playbook], rules: RuleSet
) -> None:
    assert Pages().engine().diagnose(playbooks, rules, tmp_path, sources=(DEAD,)).sources == (DEAD,)


@pytest.mark.parametrize(
    ("family", "cause"),
    [
        ("vllm:kv_cache_usage_perc", "kv-capacity-exhausted"),
        ("vllm:num_preemptions_total", "preemption-thrash"),
        ("up", "engine-crash"),
    ],
)
def test_a_family_that_is_gone_makes_its_cause_unknown_by_name(
    family: str, cause: str, playbooks: list[Playbook], rules: RuleSet
) -> None:
    pages = Pages().engine(usage=0.97, waiting=grows(0.1, 3.0), preemptions=grows(1.0))
    del pages.series[family]
    diagnosis = pages.diagnose(playbooks, rules)
    assert cause not in {name for f in diagnosis.findings for name in (f.cause, *f.explains)}
    (open_,) = [u for u in diagnosis.unknown if u.cause == cause]
    assert family in open_.missing


def test_members_are_engines_targets_exporters_and_gpus(tmp_path: Path, rules: RuleSet) -> None:
    pages = Pages().engine().engine("pod-1:8000", rank="1").target("node-a:9400")
    for gpu in ("0", "1"):
        pages.put("DCGM_FI_DEV_GPU_UTIL", f'gpu="{gpu}",instance="node-a:9400",job="vllm"', 50.0)
    with pages.view(tmp_path, rules) as (view, grid):
        members = find_members(Bench(view, grid, rules))
    assert [m.get("engine") for m in members["engine"]] == ["0", "1"]
    assert [m.get("instance") for m in members["target"]] == ["pod-1:8000"]
    assert [m.get("instance") for m in members["exporter"]] == ["node-a:9400"]
    assert [m.get("gpu") for m in members["gpu"]] == ["0", "1"]
    assert [m.get("model_name") for m in members["model"]] == ["m"]
    assert members["fleet"] == [Labels.of()]


def test_an_engine_that_is_gone_is_no_member_any_more_but_its_target_is(tmp_path: Path, rules: RuleSet) -> None:
    pages = Pages(seconds=600).engine().engine("pod-2:8000")
    gone = engine_labels("pod-2:8000")
    for name, rows in pages.series.items():
        for labels, curve in rows:
            if labels.startswith(gone):
                pages.put(name, labels, lambda t, curve=curve: curve(t) if t < 100 else NAN)  # type: ignore[misc]
    with pages.view(tmp_path, rules) as (view, grid):
        members = find_members(Bench(view, grid, rules))
    assert [m.get("instance") for m in members["engine"]] == ["pod-1:8000"]
    assert [m.get("instance") for m in members["target"]] == ["pod-1:8000", "pod-2:8000"]
