"""What leaves by standard output: closed, full and broken outputs, and text that must not steer a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from playbooks.printable import NAME_CHARS, page, printable
from tests.endpoints import Endpoint
from tui.cli import main
from tui.commands.reading_text import moment_text, number_text

ROOT = Path(__file__).resolve().parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / "vllm" / "small-pool.txt"
EVIL = "\x1b]0;owned\x07\x9b31m\u2028\u202eend"
Captured = pytest.CaptureFixture[str]


def shell(words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m tui.cli {words}"],
        cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def huge(tmp_path: Path) -> str:
    """A real engine's page with every value at the end of what a float can hold."""
    names = [line.rsplit(" ", 1)[0] for line in FIXTURE.read_text().splitlines() if line[:1] != "#"]
    lines = [f"{name} 1e308 {1_700_000_000 + 10 * k}" for name in names for k in range(3)]
    path = tmp_path / "huge.om"
    path.write_text("\n".join(lines) + "\n# EOF\n")
    return str(path)


@pytest.fixture
def evil(tmp_path: Path) -> str:
    """A recording whose labels hold terminal commands, a line feed, and far too much."""
    label = EVIL + "\\n" + "x" * 5000
    path = tmp_path / "evil.om"
    path.write_text(
        f'vllm:num_requests_running{{engine="0",job="vllm",instance="{label}",model_name="{label}"}} 3 1700000000\n'
        f'vllm:kv_cache_usage_perc{{engine="0",job="vllm",instance="{label}",model_name="{label}"}} 0.5 1700000000\n'
        "# EOF\n"
    )
    return str(path)


@pytest.mark.parametrize("words", ["help", "help once", "--version", "playbook list", "rules --recording"])
def test_a_closed_output_is_one_that_nobody_reads(words: str) -> None:
    assert shell(f"{words} >&-") == (0, "", "")
    assert shell(f"{words} <&- >&- 2>&-")[0] == 0


@pytest.mark.parametrize("words", ["help", "help once", "--version", "playbook list", "rules --recording"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_line_and_never_a_finding(words: str) -> None:
    code, _, err = shell(f"{words} >/dev/full")
    assert code == 74
    assert err == "kvtop: standard output cannot be written: no space left on device\n"


def test_an_error_does_not_go_to_the_answer() -> None:
    assert shell("once no-such-file 2>&-") == (2, "", "")


def test_the_exit_code_does_not_depend_on_the_reader(tmp_path: Path) -> None:
    (tmp_path / "empty.om").write_text("# EOF\n")
    code, out, err = shell(f"once {tmp_path}/empty.om | true")
    assert (code, out, err) == (4, "", "")


@pytest.mark.parametrize("command", ["once", "doctor", "diagnose"])
def test_values_at_the_end_of_a_float_are_shown(command: str, huge: str, capsys: Captured) -> None:
    assert main([command, huge]) in (0, 1)
    out, err = capsys.readouterr()
    assert "inf%" not in out.replace(" ", "")
    assert "Traceback" not in err
    if command == "once":
        assert "1e+308" in out


def test_numbers_beyond_every_unit() -> None:
    assert number_text(0.5, "ratio") == "50.0 %"
    for unit in ("ratio", "seconds", "bytes", "per_second", "tokens", "tokens_per_second"):
        for value in (1e308, -1e308):
            assert number_text(value, unit).startswith(f"{value:.3g}")
    assert moment_text(0.0) == "1970-01-01 00:00:00"
    assert "no date" in moment_text(1e308)
    assert "no date" in moment_text(-5.0)


@pytest.mark.parametrize("words", [["once"], ["query", "kv:requests_running"], ["query", "{job='vllm'}"], ["doctor"]])
def test_labels_cannot_steer_the_terminal(words: list[str], evil: str, capsys: Captured) -> None:
    assert main([*words, evil]) == 0
    out = capsys.readouterr().out
    assert out == page(out), "only line feeds are left"
    assert "\\x1b" in out
    assert max(map(len, out.splitlines())) < 4 * NAME_CHARS


@pytest.mark.parametrize("style", [[], ["--markdown"]])
def test_labels_cannot_steer_the_terminal_in_a_diagnosis(style: list[str], evil: str, capsys: Captured) -> None:
    main(["diagnose", evil, *style])
    out = capsys.readouterr().out
    assert out == page(out)
    assert "\\x1b" in out


def test_json_keeps_every_character_and_is_safe_to_print(evil: str, capsys: Captured) -> None:
    assert main(["query", "kv:requests_running", evil, "--json"]) == 0
    out = capsys.readouterr().out
    assert out == page(out)
    assert json.loads(out)["result"][0]["metric"]["instance"] == EVIL + "\n" + "x" * 5000


@pytest.mark.parametrize("words", [["once"], ["diagnose"], ["query", "up"], ["record", "-o", "x.om"], ["top"]])
@pytest.mark.parametrize("target", ["a\nb:1", "http://x\x1b[31m:1/", "\udcff\x1b.om"])
def test_a_target_with_controls_is_one_line(words: list[str], target: str, capsys: Captured) -> None:
    assert main([*words, target]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == page(err)
    assert err.count("\n") == 1


def test_an_error_that_a_target_words_is_escaped(capsys: Captured) -> None:
    with Endpoint(f"# TYPE x gauge\nx {EVIL}\n".encode()) as endpoint:
        assert main(["once", endpoint.target]) == 4
    out = capsys.readouterr().out
    assert "not-exposition" in out
    assert out == page(out)


def test_printable() -> None:
    assert printable("Größe · 5 µs") == "Größe · 5 µs"
    assert printable("a\nb\x1b\x9b\u2028") == "a\\nb\\x1b\\x9b\\u2028"
    assert printable(printable(EVIL)) == printable(EVIL)
    assert printable("x" * 10, 5) == "xxxx…"
    assert page("a\n\tb\x1b") == "a\n\tb\\x1b"
