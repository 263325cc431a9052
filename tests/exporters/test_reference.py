"""The generated page of signals."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporters import reference
from probes.rules import RuleSet


def test_the_committed_page_is_up_to_date() -> None:
    assert reference.PAGE.read_text(encoding="utf-8") == reference.render(RuleSet.load()), (
        "run python -m exporters.reference"
    )


def test_check_tells_a_stale_page_and_leaves_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "deep" / "signals.md"
    assert reference.main(["--check", "--output", str(page)]) == 1
    assert not page.exists()
    assert reference.main(["--output", str(page)]) == 0
    assert reference.main(["--check", "--output", str(page)]) == 0
    page.write_text(page.read_text() + "edited\n")
    assert reference.main(["--check", "--output", str(page)]) == 1
    assert page.read_text().endswith("edited\n")
    assert capsys.readouterr().err.count("out of date") == 2


def test_the_page_tells_every_signal_its_sources_and_traps() -> None:
    rules = RuleSet.load()
    page = reference.render(rules)
    for entry in rules.vocabulary:
        assert f"| `{entry.name}` | {entry.type} |" in page
    assert "`vllm:inter_token_latency_seconds or vllm:time_per_output_token_seconds`" in page
    assert "no source yet" not in page
    for rule in rules.rules:
        assert rule.comment in page
