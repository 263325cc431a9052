"""The example of the page on writing playbooks is a good one, and runs."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

from playbooks.lab.shelf import Shelf
from playbooks.lint import lint
from playbooks.playbook import Playbook, load_playbooks
from playbooks.rehearse import diagnose_file, rehearse
from playbooks.verdict import Verdict
from probes.rules import RuleSet
from tests.playbooks.example import NAME, PAGE, example


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / NAME).write_text(example(), encoding="utf-8")
    return tmp_path


def test_it_passes_lint(folder: Path) -> None:
    assert lint([folder]) == []


def test_its_fixtures_pass_beside_the_catalogue(folder: Path, shelf_folder: Path) -> None:
    played = list(rehearse(load_playbooks([folder]), ["prefix-cache-idle"], shelf_folder))
    assert len(played) == 4
    assert [str(one) for one in played if not one.passed] == []


def test_it_names_what_the_catalogue_alone_does_not(
    folder: Path, playbooks: list[Playbook], rules: RuleSet, shelf_folder: Path
) -> None:
    path = Shelf(shelf_folder).path("healthy-unique-prompts", 1)
    assert diagnose_file(path, playbooks, rules).findings == ()
    first = diagnose_file(path, load_playbooks([folder]), rules).findings[0]
    assert (first.cause, first.verdict) == ("prefix-cache-idle", Verdict.LIKELY)
    assert first.evidence[1].says == "0 of them were found"
    assert set(first.cost) == {"tokens_hashed"}


def test_a_playbook_of_the_same_id_replaces_the_packaged_one(folder: Path, playbooks: list[Playbook]) -> None:
    mine = example().replace("id: prefix-cache-idle", "id: pool-leak")
    (folder / NAME).unlink()
    (folder / "pool-leak.md").write_text(mine, encoding="utf-8")
    found = load_playbooks([folder])
    assert len(found) == len(playbooks)
    assert next(p for p in found if p.id == "pool-leak").title == "The prefix cache finds nothing at all"
    assert [p.id for p in load_playbooks([folder], packaged=False)] == ["pool-leak"]


def test_the_page_names_every_key_scope_and_basis_of_the_schema() -> None:
    schema = json.loads((resources.files("playbooks") / "schema" / "playbook.schema.json").read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    words = [key for key in schema["properties"] if key != "limit"]
    for part in ("test", "pattern"):
        words += schema["$defs"][part]["properties"]
    words += schema["$defs"]["pattern"]["properties"]["scope"]["enum"]
    words += schema["$defs"]["test"]["properties"]["basis"]["enum"]
    missing = [word for word in words if f"`{word}" not in page]
    assert missing == []
