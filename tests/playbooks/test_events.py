"""Restarts and outages are events, not faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from playbooks.bench import Bench
from playbooks.engine import find_members
from playbooks.events import events
from playbooks.playbook import Playbook
from playbooks.verdict import Event, Overall
from probes.rules import RuleSet
from tests.playbooks.pages import START_S, Pages
from tests.playbooks.stub import NAN, during


def _events(pages: Pages, folder: Path, rules: RuleSet) -> list[Event]:
    with pages.view(folder, rules) as (view, grid):
        targets = find_members(Bench(view, grid, rules))["target"]
        return list(events(Bench(view, replace(grid, range_ms=0), rules), targets))


def test_a_quiet_window_has_none(tmp_path: Path, rules: RuleSet) -> None:
    assert _events(Pages().engine(), tmp_path, rules) == []


def test_a_restart_is_told_at_its_moment(tmp_path: Path, rules: RuleSet) -> None:
    pages = Pages().engine().engine("pod-2:8000")
    pages.target("pod-1:8000", started_s=lambda t: START_S - 86_400 if t < 150 else START_S + 140)
    (event,) = _events(pages, tmp_path, rules)
    assert (event.kind, event.time_ms, event.member) == (
        "restart",
        (START_S + 150) * 1000,
        {"instance": "pod-1:8000"},
    )
    assert event.says == "restarted (process start 2026-09-21 14:15:40Z)"


def test_a_gap_or_a_rounding_of_the_start_time_is_no_restart(tmp_path: Path, rules: RuleSet) -> None:
    pages = Pages().engine()
    pages.target("pod-1:8000", started_s=lambda t: NAN if 100 <= t < 160 else START_S - 86_400 + (t > 200) * 0.5)
    assert _events(pages, tmp_path, rules) == []


def test_counters_that_fall_are_an_event_where_no_start_time_is_told(tmp_path: Path, rules: RuleSet) -> None:
    pages = Pages().engine(preemptions=lambda t: 50.0 + t if t < 150 else t - 150)
    assert _events(pages, tmp_path, rules) == [], "the process says when it started: it is the same"
    del pages.series["process_start_time_seconds"]
    (event,) = _events(pages, tmp_path, rules)
    assert (event.kind, event.time_ms, event.says) == ("reset", (START_S + 150) * 1000, "counters began anew (1 fell)")


def test_an_outage_has_a_beginning_and_a_length(tmp_path: Path, rules: RuleSet) -> None:
    pages = Pages().engine()
    pages.target("pod-1:8000", up=lambda t: 1.0 - during(100, 135)(t))
    (event,) = _events(pages, tmp_path, rules)
    assert (event.kind, event.time_ms, event.says) == ("outage", (START_S + 100) * 1000, "did not answer for 40 s")


def test_an_outage_that_lasts_says_so(tmp_path: Path, rules: RuleSet) -> None:
    pages = Pages().engine()
    pages.target("pod-1:8000", up=lambda t: 1.0 if t < 280 else 0.0)
    assert [e.says for e in _events(pages, tmp_path, rules)] == ["does not answer any more"]


def test_events_come_in_order(tmp_path: Path, rules: RuleSet) -> None:
    pages = Pages().engine().engine("pod-2:8000")
    pages.target("pod-1:8000", up=lambda t: 1.0 - during(200, 210)(t))
    pages.target("pod-2:8000", started_s=lambda t: START_S - 86_400 if t < 150 else START_S + 145)
    assert [e.kind for e in _events(pages, tmp_path, rules)] == ["restart", "outage"]


def test_one_planned_restart_is_an_event_and_the_fleet_healthy(playbooks: list[Playbook], rules: RuleSet) -> None:
    pages = Pages().engine().engine("pod-2:8000")
    pages.target("pod-1:8000", started_s=lambda t: START_S - 86_400 if t < 150 else START_S + 149)
    diagnosis = pages.diagnose(playbooks, rules)
    assert diagnosis.verdict is Overall.HEALTHY
    assert [e.kind for e in diagnosis.events] == ["restart"]
