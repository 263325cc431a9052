"""Rule files of one's own on the command line: an engine that nobody knew, and files that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tui.cli import main

RULES = """\
groups:
  - name: own
    rules:
      - record: kv:pool_usage_ratio
        expr: 0.01 * own_pool_percent
        labels: {system: own}
      - record: kv:pool_spilled_blocks
        expr: own_spilled
        labels: {system: own}
"""
VOCABULARY = 'kv:pool_spilled_blocks: {type: gauge, unit: blocks, group: capacity, meaning: "Blocks spilled"}\n'


@pytest.fixture
def recording(tmp_path: Path) -> str:
    path = tmp_path / "own.om"
    lines = [f"own_pool_percent {40 + t} {1000 + 5 * t}\nown_spilled 7 {1000 + 5 * t}\n" for t in range(5)]
    path.write_text("".join(lines) + "# EOF\n")
    return str(path)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "engines"
    folder.mkdir()
    (folder / "own.rules.yml").write_text(RULES)
    (folder / "canonical.yml").write_text(VOCABULARY)
    return folder


def asked(expr: str, recording: str, *more: str, capsys: pytest.CaptureFixture[str]) -> list[float]:
    assert main(["query", expr, recording, "--json", *more]) == 0
    found = json.loads(capsys.readouterr().out)["result"]
    assert all(one["metric"].get("system", "own") == "own" for one in found)
    return [float(one["value"][1]) for one in found]


def test_own_rules_fill_canonical_names_and_add_new_ones(
    recording: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked("kv:pool_usage_ratio", recording, capsys=capsys) == []
    assert asked("kv:pool_usage_ratio", recording, "--rules", str(own), capsys=capsys) == [0.44]
    assert asked("kv:pool_spilled_blocks", recording, "--rules", str(own), capsys=capsys) == [7]


def test_once_and_the_printed_rules_know_them(recording: str, own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["once", recording, "--json", "--rules", str(own)]) == 0
    (entity,) = json.loads(capsys.readouterr().out)["entities"]
    assert entity["values"]["kv:pool_usage_ratio"]["value"] == pytest.approx(0.44)
    assert main(["rules", "--recording", "--rules", str(own)]) == 0
    assert "0.01 * own_pool_percent" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["once"], ["diagnose"], ["query", "up"], ["doctor"], ["record", "-o", "x.om"]])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (RULES.replace("kv:pool_usage_ratio", "kv:pool_usage_rato"), "own.rules.yml:4: "),
        (RULES.replace("0.01 * own_pool_percent", "rate(own_pool_percent[1m])"), "rate"),
        ("groups: [", "no YAML"),
    ],
)
def test_a_bad_file_is_one_line_and_exit_2(
    command: list[str],
    text: str,
    says: str,
    recording: str,
    own: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (own / "own.rules.yml").write_text(text)
    assert main([*command, recording, "--rules", str(own)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert says in shown.err
    assert shown.err.count("\n") == 1
    assert str(own) in shown.err


def test_a_folder_without_rules_says_how_to_name_them(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, says in ((tmp_path / "none", "no such file"), (tmp_path, "*.rules.yml")):
        assert main(["once", recording, "--rules", str(folder)]) == 2
        assert says in capsys.readouterr().err


@pytest.mark.parametrize("url", ["https://h/x\n- alert: other", "", "javascript:x", "https://h/a b"])
def test_a_place_for_runbooks_that_is_no_url_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--alerts", "--runbooks", url]) == 2
    out, err = capsys.readouterr()
    assert (out, "not a URL" in err, err.count("\n")) == ("", True, 1)
    assert main(["rules", "--alerts", "--runbooks", "https://h/books"]) == 0
    assert "runbook_url: https://h/books/" in capsys.readouterr().out.replace('"', "")


@pytest.mark.parametrize("more", [("--rules", "."), ("--playbooks", "."), ("--runbooks", "https://example.org/r")])
def test_the_counters_of_dcgm_take_no_other_option(more: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--dcgm-csv", *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert more[0] in err
    assert err.count("\n") == 1
