"""The command line as a shell sees it: words in, one line and an exit code out."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tui.cli import main
from tui.commands import COMMANDS
from tui.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
LATER = ("export", "dashboard", "trace")


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.split()[1] == VERSION


@pytest.mark.parametrize("words", [["help"], ["--help"], ["-h"]])
def test_help_lists_every_command_and_no_later_one(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    out = capsys.readouterr().out
    listed = {
        line.split()[1] for line in out.splitlines() if line.startswith("  kvtop ") and line.split()[1] in COMMANDS
    }
    assert listed == set(COMMANDS) - {"top"}
    assert not any(f"kvtop {later}" in out for later in LATER)
    assert "exit codes" in out
    assert max(map(len, out.splitlines())) <= 110


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", name]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: kvtop")
    assert COMMANDS[name].line in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["onc"], "did you mean `kvtop once`"),
        (["help", "trace"], "no command 'trace'"),
        (["once", "--no-such"], "unrecognized arguments: --no-such"),
        (["--no-such"], "unrecognized arguments: --no-such"),
        (["query"], "EXPR"),
        (["diagnose", "--for", "soon", "x:1"], "no duration"),
        (["diagnose", "--at", "noon", "x:1"], "no time"),
    ],
)
def test_a_wrong_word_is_one_line_and_exit_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert len(err.splitlines()) == 1
    assert err.startswith("kvtop: ")


_INTERRUPT = """
import os, signal, sys
class Here:
    def find_spec(self, name, *rest):
        if name == %r:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Here())
sys.argv = ["kvtop", "help"]
from tui.cli import main
sys.exit(main())
"""
_INTERRUPT_PARSER = """
import os, signal, sys
from tui.commands import Parser
Parser.format_usage = lambda self: os.kill(os.getpid(), signal.SIGINT) or "usage: "
sys.argv = ["kvtop", "once", "h:1"]
from tui.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "program",
    [_INTERRUPT % "tui.program", _INTERRUPT % "tui.commands.when", _INTERRUPT_PARSER],
    ids=["loading", "loading more", "reading the options"],
)
def test_ctrl_c_before_the_command_begins_is_no_fault(program: str) -> None:
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_reader_that_leaves_is_no_error() -> None:
    pipe = f"{sys.executable} -m tui.cli help | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {pipe}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


def test_the_store_says_what_it_can_do_and_what_comes_later() -> None:
    done = subprocess.run([sys.executable, "-m", "kvstore.cli", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert "cluster" in done.stdout
    done = subprocess.run([sys.executable, "-m", "kvstore.cli", "simulate"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "later release" in done.stderr
    assert len(done.stderr.splitlines()) == 1
