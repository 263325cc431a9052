"""What the README shows is what the commands print; ``KVSCOPE_WRITE_DOCS=1`` writes it anew."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from tui.cli import main
from tui.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
SHOWN = "kvtop diagnose playbooks/recordings/demo.om.gz"
BLOCK = re.compile(rf"(```console\n\$ {re.escape(SHOWN)}\n)(.*?)(```)", re.DOTALL)
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md"]


def test_the_diagnosis_shown_is_the_diagnosis(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    main(SHOWN.split()[1:])
    printed = capsys.readouterr().out
    text = README.read_text(encoding="utf-8")
    if "KVSCOPE_WRITE_DOCS" in os.environ:
        text = BLOCK.sub(lambda match: match[1] + printed + match[3], text)
        README.write_text(text, encoding="utf-8")
    shown = BLOCK.search(text)
    assert shown is not None
    assert shown[2] == printed, "README.md is out of date (see this module's text)"


def test_what_is_to_be_installed_can_be() -> None:
    """kvscope is on no package index: pip finds it in a checkout, by `.`, with extras that pyproject.toml has."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    rooms = ("kvstore", "probes", "exporters", "playbooks", "tui", "benchmarks")
    named: set[str] = set()
    for path in [*PAGES, *(path for room in rooms for path in (ROOT / room).rglob("*.py"))]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"install [\"']?kvscope", text), path
        named |= {extra for found in re.findall(r"pip install '\.\[([^\]]*)\]'", text) for extra in found.split(",")}
    assert "nvml" in named
    assert {extra for extra in named if "{" not in extra} <= set(extras)


def test_the_guide_names_the_ports_that_are_tried() -> None:
    from probes.attach import WELL_KNOWN

    text = (ROOT / "docs" / "guide" / "targets.md").read_text(encoding="utf-8")
    tried = next(part for part in text.split("\n\n") if part.startswith("Without a target"))
    assert [int(port) for port in re.findall(r"\b\d{4,5}(?=\s\()", tried)] == [port for port, _ in WELL_KNOWN]


def test_the_guide_names_what_only_the_ingest_derives() -> None:
    """Canonical series whose only source, of some system, is not on its page."""
    from probes.rules import RuleSet

    rules = RuleSet.load()
    derived = {
        entry.name
        for entry in rules.vocabulary
        for rule in rules.rules_of(entry.series[0])
        if all("_info:" in name or _ours(name) for name in rule.raw_names)
    }
    text = (ROOT / "docs" / "guide" / "commands.md").read_text(encoding="utf-8")
    told = text.split("has no samples of\n", 1)[1].split("Their recording rules", 1)[0]
    assert set(re.findall(r"`(kv:\w+)`", told)) == derived


def _ours(name: str) -> bool:
    """Made by kvtop's ingest; the target nvml's own are on a page like any other's, and dcgm-exporter has most too."""
    return name.startswith("kvscope_") and not name.startswith("kvscope_nvml_")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_kvtop_command_shown_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    words = re.findall(r"^\$ (?:\S+/)?kvtop ([a-z]+)(?= |$)", text, re.MULTILINE)
    assert set(words) <= {*COMMANDS, "help", "nvml", "rdma"}  # these two are targets
