"""What does not answer now is not healthy, whatever it said a minute ago."""

from __future__ import annotations

from pathlib import Path

import pytest

from playbooks.lab.shelf import Shelf
from playbooks.playbook import Playbook
from playbooks.rehearse import diagnose_text
from playbooks.verdict import Overall
from probes.rules import RuleSet

SILENT_S = 40.0


def silenced(text: str) -> str:
    """The recording as it would be had every target refused to answer for its last seconds."""
    lines = text.splitlines()
    end = max(float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#"))
    kept = []
    for line in lines:
        if not line.startswith("#"):
            series, _, stamp = line.rsplit(" ", 2)
            if float(stamp) > end - SILENT_S:
                if not series.startswith("up{"):
                    continue
                line = f"{series} 0 {stamp}"
        kept.append(line)
    return "\n".join(kept) + "\n"


@pytest.mark.parametrize("scenario", ["healthy-steady", "store-healthy"])
def test_a_deployment_that_just_died_is_not_healthy(
    scenario: str, playbooks: list[Playbook], rules: RuleSet, shelf_folder: Path
) -> None:
    text = Shelf(shelf_folder).composed(scenario, 0).text
    assert diagnose_text(text, playbooks, rules).verdict is Overall.HEALTHY
    diagnosis = diagnose_text(silenced(text), playbooks, rules)
    assert diagnosis.verdict is not Overall.HEALTHY
    assert next(check.bad for check in diagnosis.core if check.name == "freshness") is True
