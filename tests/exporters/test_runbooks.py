"""The generated runbook pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exporters import runbooks
from playbooks.lint import causes
from playbooks.playbook import Playbook, load_playbooks

PLAYBOOKS = load_playbooks()


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return runbooks.pages()


def test_the_committed_pages_are_up_to_date(pages: dict[str, str]) -> None:
    present = {path.name: path.read_text(encoding="utf-8") for path in runbooks.FOLDER.glob("*.md")}
    assert sorted(present) == sorted(pages)
    stale = [name for name, text in pages.items() if present[name] != text]
    assert stale == [], "run python -m exporters.runbooks"


def test_check_tells_what_is_stale_and_leaves_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "deep" / "runbooks"
    there = ["--output", str(folder)]
    assert runbooks.main(["--check", *there]) == 1
    assert not folder.exists()
    assert runbooks.main(there) == 0
    assert runbooks.main(["--check", *there]) == 0
    capsys.readouterr()
    page = folder / "pool-leak.md"
    page.write_text(page.read_text() + "edited\n")
    (folder / "no-such-cause.md").write_text("left over\n")
    assert runbooks.main(["--check", *there]) == 1
    told = capsys.readouterr().err.splitlines()
    assert [Path(line.split(":")[0]).name for line in told] == ["pool-leak.md", "no-such-cause.md"]
    assert page.read_text().endswith("edited\n")
    assert runbooks.main(there) == 0
    assert not (folder / "no-such-cause.md").exists()
    assert not page.read_text().endswith("edited\n")


@pytest.mark.parametrize("playbook", PLAYBOOKS, ids=[p.id for p in PLAYBOOKS])
def test_a_page_holds_the_persons_part_and_all_that_the_machine_tests(
    playbook: Playbook, pages: dict[str, str]
) -> None:
    page = pages[f"{playbook.id}.md"]
    person, machine = page.split("## What the machine tests")
    tests = machine.partition("### Tests")[2]
    assert playbook.body.strip() in person
    for test in playbook.tests.values():
        row = next(line for line in tests.splitlines() if line.startswith(f"| `{test.name}`"))
        assert f"| {test.op} {test.threshold:g}" in row
        assert f"| {test.basis} |" in row
        assert test.source.replace("|", "\\|") in row
    for pattern in playbook.patterns:
        assert f"| `{pattern.id}` | {pattern.scope} |" in machine
        for refuter in pattern.refutes:
            assert f"- `{refuter.test}` holds: it is `{refuter.means}`" in machine
    for text in (*playbook.remedies, *(c.command for c in playbook.confirm), *(c.unit for c in playbook.cost)):
        assert text in machine
    for name in (*playbook.explains, *playbook.explains_elsewhere):
        assert f"`{name.removeprefix('symptom:')}`" in machine
    assert playbook.alert is None or f"For {playbook.alert.for_}, severity {playbook.alert.severity}" in machine


def test_tables_have_as_many_cells_in_every_row(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
            counts = {row.replace("\\|", "").count("|") for row in block.splitlines()}
            assert len(counts) == 1, f"{name}: {block[:80]}"


def test_every_shorthand_is_told(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        machine = page.partition("## What the machine tests")[2]
        used = set(re.findall(r"\$([a-z_]+)", machine)) - {"window", "span", "recent", "interval"}
        told = set(re.findall(r"^- `\$([a-z_]+)` is `", machine, re.MULTILINE))
        assert used == told, name


def test_the_index_names_every_cause_and_links_what_is_there(pages: dict[str, str]) -> None:
    index = pages["README.md"]
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.*?) \|", index, re.MULTILINE)
    assert {cause for cause, _ in rows} == causes()
    have = {playbook.id for playbook in PLAYBOOKS}
    for cause, told in rows:
        assert told == (f"[has a playbook]({cause}.md)" if cause in have else "not yet")


def test_links_lead_somewhere() -> None:
    for path in runbooks.FOLDER.glob("*.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).exists(), f"{path.name}: {link}"
