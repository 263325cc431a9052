"""A bad playbook is refused with the file, the line and what to do; the packaged ones pass."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from playbooks.frontmatter import FrontMatterError
from playbooks.lint import Problem, causes, lint
from playbooks.playbook import load_playbooks
from tests.playbooks.example import NAME, changed, example, line_of

BAD = Path(__file__).with_name("bad")


@dataclass(frozen=True)
class Break:
    """One way to break the example: ``old`` becomes ``new``; the problem lies on the line of ``at``."""

    name: str
    old: str
    new: str
    at: str
    says: str


FOUND = 'says: "{value:.0f} of them were found"'
BREAKS = [
    Break(
        "no basis",
        '    basis: physical\n    source: "not one',
        '    source: "not one',
        "nothing_found:",
        r"'basis' is missing; add it",
    ),
    Break("unknown basis", "basis: physical", "basis: gut", "basis: gut", r"'gut' is none of physical, vendor, paper"),
    Break("no source", '    source: "not one token was found"\n', "", "nothing_found:", r"'source' is missing; add it"),
    Break(
        "no refutation",
        "    refutes:\n      - {test: some_found, means: prefix-key-unstable}\n"
        "      - {test: pool_full, means: prefix-capacity-miss}\n",
        "    supports: [some_found, pool_full]\n",
        "patterns:",
        r"no pattern has a refutation; name a look-alike",
    ),
    Break(
        "refutation means itself",
        "means: prefix-key-unstable",
        "means: prefix-cache-idle",
        "  - id: never_hits",
        r"must mean another cause",
    ),
    Break(
        "unknown look-alike",
        "means: prefix-key-unstable",
        "means: bad-karma",
        "  - id: never_hits",
        r"'bad-karma', which is no root cause; take one of the set",
    ),
    Break(
        "unknown test",
        "requires: [looked_up",
        "requires: [looked_down, looked_up",
        "  - id: never_hits",
        r"names no test 'looked_down'; add it under tests",
    ),
    Break(
        "unused test",
        "requires: [looked_up, nothing_found]",
        "requires: [nothing_found]",
        "  looked_up:",
        r"'looked_up' is used by no pattern; .* or remove it",
    ),
    Break(
        "no look-alike fixture",
        "  lookalike:\n    - {scenario: prefix-key-unstable, expect: prefix-key-unstable}\n"
        "    - {scenario: healthy-idle, expect: healthy}\n",
        "",
        "fixtures:",
        r"fixtures: 'lookalike' is missing; add it",
    ),
    Break(
        "empty look-alike fixtures",
        "  lookalike:\n    - {scenario: prefix-key-unstable, expect: prefix-key-unstable}\n"
        "    - {scenario: healthy-idle, expect: healthy}\n",
        "  lookalike: []\n",
        "  lookalike: []",
        r"is empty; give at least one",
    ),
    Break(
        "no missing-signal fixture",
        '  missing:\n    - {scenario: healthy-unique-prompts, drop: ["vllm:prefix_cache_hits"], expect: healthy}\n',
        "",
        "fixtures:",
        r"fixtures: 'missing' is missing; add it",
    ),
    Break(
        "no cost",
        "cost:\n  tokens_hashed:\n    expr: $looked_up\n    unit: tokens_per_second\n",
        "",
        "---",
        r"'cost' is missing; add it",
    ),
    Break(
        "no confirming command",
        "confirm:\n  - {command: \"kvtop query 'rate(kv:prefix_cache_hits_total[5m])' $INSTANCE\", class: read-only}\n",
        "",
        "---",
        r"'confirm' is missing; add it",
    ),
    Break(
        "command of no class",
        "class: read-only",
        "class: harmless",
        "  - {command:",
        r"'harmless' is none of read-only, active, needs-root",
    ),
    Break(
        "explains nothing known",
        "cost:\n",
        "explains: [kv-capacity-exhausted, bad-karma]\ncost:\n",
        "explains: [kv",
        r"explains names 'bad-karma'",
    ),
    Break(
        "explains no symptom",
        "cost:\n",
        'explains: ["symptom:sorrow"]\ncost:\n',
        'explains: ["symptom',
        r"explains names 'symptom:sorrow', which is no root cause and no swept symptom",
    ),
    Break(
        "broken PromQL",
        "sum by (instance, engine) (increase(kv:prefix_cache_queries_total[$window]))",
        "sum by (instance, engine) (increase(kv:prefix_cache_queries_total[$window])",
        "    expr: sum by",
        r"tests\.looked_up\.expr: .*column \d+",
    ),
    Break(
        "unknown function",
        "increase(kv:prefix_cache_queries_total",
        "incraese(kv:prefix_cache_queries_total",
        "    expr: sum by",
        r"tests\.looked_up\.expr: .*incraese.*column 28|tests\.looked_up\.expr: .*column 28.*incraese",
    ),
    Break(
        "unknown signal",
        "kv:prefix_cache_queries_total",
        "kv:prefix_cache_querys_total",
        "    expr: sum by",
        r"kv:prefix_cache_querys_total.*kv:prefix_cache_queries_total",
    ),
    Break(
        "unknown shorthand",
        "    expr: $usage",
        "    expr: $usages",
        "    expr: $usages",
        r"unknown shorthand \$usages; there are .*usage",
    ),
    Break(
        "raw names only",
        "    expr: $usage\n",
        "    expr: vllm:kv_cache_usage_perc\n",
        "    expr: vllm:",
        r"'pool_full' asks for no kv:\* signal",
    ),
    Break(
        "broken cost",
        "    expr: $looked_up\n    unit",
        "    expr: $looked_up +\n    unit",
        "    expr: $looked_up +",
        r"cost\.tokens_hashed\.expr: ",
    ),
    Break(
        "broken what-if",
        "    expr: $looked_up\n    says",
        "    expr: ($looked_up\n    says",
        "    expr: ($looked_up",
        r"what_if\.0\.expr: ",
    ),
    Break("broken alert", "== 0\n  for", "== \n  for", "== \n  for", r"alert\.expr: "),
    Break(
        "sentence asks for more",
        FOUND,
        FOUND.replace("value:.0f", "foo"),
        '    says: "{foo}',
        r"says asks for \{foo\}; only \{value\} and \{threshold\}",
    ),
    Break(
        "unknown key",
        "severity: info",
        "severity: info\nseverety: info",
        "severety",
        r"unknown key 'severety'; remove it or mend its spelling",
    ),
    Break(
        "unknown scope",
        "scope: engine",
        "scope: universe",
        "    scope: universe",
        r"'universe' is none of engine, shard",
    ),
    Break("section missing", "## Impact\n", "", "## Meaning", r"no section '## Impact'"),
    Break(
        "wrong file name",
        "id: prefix-cache-idle",
        "id: something-else",
        "id: something-else",
        r"'something-else' must be the file's name, prefix-cache-idle.md",
    ),
]


def _lint(folder: Path, text: str) -> list[Problem]:
    path = folder / NAME
    path.write_text(text, encoding="utf-8")
    return lint([path])


def test_the_packaged_catalogue_passes() -> None:
    assert lint() == []
    assert {p.id for p in load_playbooks()} <= causes()


def test_the_unbroken_example_passes(tmp_path: Path) -> None:
    assert _lint(tmp_path, example()) == []


@pytest.mark.parametrize("broken", BREAKS, ids=[one.name for one in BREAKS])
def test_a_broken_playbook_is_refused_by_line(broken: Break, tmp_path: Path) -> None:
    text = changed(broken.old, broken.new)
    problems = _lint(tmp_path, text)
    assert problems, "it must not pass"
    first = next((p for p in problems if re.search(broken.says, p.message)), None)
    assert first is not None, [str(p) for p in problems]
    assert first.path == str(tmp_path / NAME)
    line = line_of(text, broken.at)
    if broken.name == "section missing":  # it has no line of its own: the page begins after the front matter
        assert line_of(text, "# The prefix cache finds nothing at all\n\n") - 2 <= first.line <= line
    else:
        assert first.line == line, str(first)
    assert str(first) == f"{first.path}:{first.line}: {first.message}"
    assert "\n" not in str(first)


@pytest.mark.parametrize(
    ("name", "line", "says"),
    [
        ("broken-yaml.md", 5, "broken YAML: .*; mend it"),
        ("unclosed.md", 1, "not closed; end it with a line '---'"),
        ("no-front-matter.md", 1, "no front matter; begin the file with a line '---'"),
        ("no-mapping.md", 2, "no mapping; write 'key: value' lines"),
        ("empty.md", 1, "no front matter"),
    ],
)
def test_a_file_that_is_no_playbook_is_refused(name: str, line: int, says: str) -> None:
    (problem,) = lint([BAD / name])
    assert re.search(says, problem.message), str(problem)
    assert problem.line == line


def test_a_file_that_is_no_playbook_is_not_loaded_either() -> None:
    with pytest.raises(FrontMatterError, match=r"broken-yaml\.md:5: "):
        load_playbooks([BAD])


def test_one_bad_file_does_not_hide_another() -> None:
    assert len({problem.path for problem in lint([BAD])}) == len(list(BAD.glob("*.md")))


def test_a_circle_of_explanations_is_refused_on_each_of_its_links(tmp_path: Path) -> None:
    for own, other in (("one-cause", "other-cause"), ("other-cause", "one-cause")):
        text = changed("cost:\n", f"explains: [{other}]\ncost:\n").replace("id: prefix-cache-idle", f"id: {own}")
        (tmp_path / f"{own}.md").write_text(text, encoding="utf-8")
    problems = lint([tmp_path])
    assert len(problems) == 2
    for problem in problems:
        assert "explains itself over other causes; break the circle in `explains`" in problem.message
        assert Path(problem.path).read_text(encoding="utf-8").splitlines()[problem.line - 1].startswith("explains:")


def test_an_empty_folder_and_an_unreadable_file_are_told(tmp_path: Path) -> None:
    (nothing,) = lint([tmp_path])
    assert "holds no playbook" in nothing.message
    (absent,) = lint([tmp_path / "absent.md"])
    assert absent.message.startswith("cannot be read (no such file or directory)")
    (tmp_path / NAME).write_bytes(b"---\nid: \xff\n---\n")
    (garbled,) = lint([tmp_path / NAME])
    assert "cannot be read" in garbled.message


def test_a_playbook_that_cannot_be_read_is_told_when_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "y.md").write_bytes(b"\xff\xfe")
    with pytest.raises(FrontMatterError, match=r"y\.md.*is not UTF-8 text"):
        load_playbooks([tmp_path])
    (tmp_path / "y.md").unlink()
    (tmp_path / "y.md").mkdir()
    with pytest.raises(FrontMatterError, match=r"y\.md.*cannot be read \(is a directory\)"):
        load_playbooks([tmp_path])


def test_every_defect_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    text = changed("## Impact\n", "").replace("$usage", "$usages").replace("means: prefix-key-unstable", "means: karma")
    assert len(_lint(tmp_path, text)) == 3


def test_the_command_line_refuses_with_exit_2(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(changed("    expr: $usage", "    expr: $usages"), encoding="utf-8")
    command = [sys.executable, "-m", "tui.cli", "playbook", "lint", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{tmp_path / NAME}:")
    assert done.stderr.count("\n") == 1
