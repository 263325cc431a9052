"""The wire's playbooks on what two guests with Soft-RoCE counted (tests/roce): both hosts, and the shard's page."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from playbooks.playbook import Playbook
from playbooks.rehearse import diagnose_text
from playbooks.verdict import Diagnosis
from probes.rules import RuleSet

FOLDER = Path(__file__).parents[1] / "fixtures" / "rdma"
WIRE = frozenset(("roce-loss", "wrong-transport", "descriptor-explosion"))
LOST = {"loss-requests": "node-b", "loss-answers": "node-a"}
"""Run → the host whose packets were lost."""
CLEAN = ("healthy", "delay", "link-down", "killed", "frozen")


def diagnosed(run: str, playbooks: list[Playbook], rules: RuleSet) -> Diagnosis:
    text = gzip.decompress((FOLDER / f"{run}.om.gz").read_bytes()).decode()
    return diagnose_text(text, playbooks, rules)


@pytest.mark.parametrize("run", LOST)
def test_loss_is_found_at_the_port_whose_packets_are_lost(run: str, playbooks: list[Playbook], rules: RuleSet) -> None:
    found = [f for f in diagnosed(run, playbooks, rules).findings if f.cause in WIRE]
    assert [(f.cause, f.verdict.value) for f in found] == [("roce-loss", "likely")]
    assert found[0].member == {"instance": LOST[run], "device": "rxe0"}


def test_forced_tcp_is_the_wrong_transport(playbooks: list[Playbook], rules: RuleSet) -> None:
    found = [f for f in diagnosed("tcp", playbooks, rules).findings if f.cause in WIRE]
    assert {f.cause for f in found} == {"wrong-transport"}
    assert {f.member["device"] for f in found} == {"rxe0"}


@pytest.mark.parametrize("run", CLEAN)
def test_none_of_them_is_seen_in_what_merely_looks_alike(run: str, playbooks: list[Playbook], rules: RuleSet) -> None:
    assert not [f for f in diagnosed(run, playbooks, rules).findings if f.cause in WIRE]
