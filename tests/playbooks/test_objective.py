"""A user's own objective decides what bad means."""

from __future__ import annotations

from pathlib import Path

import pytest

from playbooks.objective import ObjectiveError, objective
from playbooks.playbook import Playbook
from playbooks.verdict import Overall
from probes.rules import RuleSet
from tests.playbooks.pages import Pages


@pytest.mark.parametrize(
    ("text", "expr", "broken_when", "value"),
    [
        ("kv:requests_waiting < 10", "kv:requests_waiting", ">=", 10.0),
        ("kv:requests_waiting<=1e1", "kv:requests_waiting", ">", 10.0),
        ("min(kv:up) > 0.5", "min(kv:up)", "<=", 0.5),
        ("min(kv:up)\n  >= 1", "min(kv:up)", "<", 1.0),
        ("count(kv:up > 0) >= 2", "count(kv:up > 0)", "<", 2.0),
        ('sum(kv:x{a="<5"}) < -3', 'sum(kv:x{a="<5"})', ">=", -3.0),
    ],
)
def test_what_must_hold_is_bad_when_it_does_not(text: str, expr: str, broken_when: str, value: float) -> None:
    test = objective(text).check.test
    assert (test.expr, test.op, test.threshold) == (expr, broken_when, value)


@pytest.mark.parametrize(
    "text", ["", "kv:requests_waiting", "kv:requests_waiting <", "< 5", "a == 5", "a < b", "a < 1e"]
)
def test_what_is_no_objective_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ObjectiveError) as refused:
        objective(text)
    assert "\n" not in str(refused.value)
    assert text in str(refused.value)


def test_a_broken_objective_that_no_cause_explains_is_unexplained(
    tmp_path: Path, playbooks: list[Playbook], rules: RuleSet
) -> None:
    pages = Pages().engine()
    kept = pages.diagnose(playbooks, rules, tmp_path, objectives=(objective("max(kv:requests_running) < 50"),))
    assert kept.verdict is Overall.HEALTHY
    assert next(c.bad for c in kept.core if c.name == "latency") is False
    missed = pages.diagnose(playbooks, rules, tmp_path, objectives=(objective("max(kv:requests_running) < 5"),))
    assert missed.verdict is Overall.UNKNOWN
    assert [u.resource for u in missed.unexplained] == ["objective"]
    assert "max(kv:requests_running) < 5 is broken" in missed.unexplained[0].says


def test_an_objective_without_data_is_open_and_does_not_block(
    tmp_path: Path, playbooks: list[Playbook], rules: RuleSet
) -> None:
    dark = Pages().engine().diagnose(playbooks, rules, tmp_path, objectives=(objective("kv:ttft_seconds_sum < 1"),))
    assert dark.verdict is Overall.HEALTHY
    assert next(c.bad for c in dark.core if c.name == "latency") is None


def test_several_objectives_are_all_asked(tmp_path: Path, playbooks: list[Playbook], rules: RuleSet) -> None:
    both = (objective("max(kv:requests_running) < 5"), objective("max(kv:pool_usage_ratio) < 0.1"))
    diagnosis = Pages().engine().diagnose(playbooks, rules, tmp_path, objectives=both)
    assert len(diagnosis.unexplained) == 2
