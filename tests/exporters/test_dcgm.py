"""The counters for dcgm-exporter: what it takes, and exactly what the adapter reads."""

from __future__ import annotations

import csv

import pytest

from exporters.dcgm import COUNTERS, render_counters
from probes.rules import RuleSet
from tests.probes.dcgm_names import RENAMED, counters
from tests.tui.commands_rig import Captured, run


def read_by_the_adapter() -> dict[str, set[str]]:
    """Raw name → the canonical names that it fills."""
    found: dict[str, set[str]] = {}
    for rule in RuleSet.load().rules:
        if ("system", "dcgm") in rule.labels:
            for name in rule.raw_names:
                found.setdefault(name, set()).add(rule.record)
    return found


def test_every_field_is_read_and_everything_that_is_read_is_asked_for() -> None:
    read, asked = read_by_the_adapter(), counters()
    assert set(asked) - set(read) == set(), "asked for, and nobody reads it"
    assert set(read) - set(asked) - set(RENAMED) == set(), "read, and not asked for"
    assert set(RENAMED) - set(read) == set()
    for new, old in RENAMED.items():
        assert read[new] == read[old], f"{new} is the new name of {old}"


def test_a_field_has_the_type_of_what_it_fills() -> None:
    rules = RuleSet.load()
    for name, records in read_by_the_adapter().items():
        if name in counters():
            assert {counters()[name].type} == {rules.canonical(record).type for record in records}, name


def test_every_line_is_a_record_of_three_as_the_exporter_reads_it() -> None:
    rows = list(csv.reader(COUNTERS.read_text(encoding="utf-8").splitlines()))
    assert {len(row) for row in rows if row} == {3}
    assert all(one.help for one in counters().values())


def test_what_the_exporters_default_leaves_out_is_there() -> None:
    asked = {name for name, one in counters().items() if one.asked}
    assert asked >= {
        "DCGM_FI_PROF_SM_ACTIVE",
        "DCGM_FI_DEV_POWER_VIOLATION",
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_PCIE_LINK_GEN",
    }


def test_kvtop_prints_it(capsys: Captured) -> None:
    code, out, _ = run(capsys, "rules", "--dcgm-csv")
    assert (code, out) == (0, render_counters())
    assert run(capsys, "rules", "--dcgm-csv", "--alerts")[0] == 2


@pytest.mark.parametrize("name", ["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_PCIE_RX_THROUGHPUT"])
def test_what_means_something_else_than_it_says_is_not_read(name: str) -> None:
    assert name not in read_by_the_adapter()
    assert name not in counters()
