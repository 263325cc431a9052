"""What the commands refuse: targets without samples, broken objectives, secrets in what they say."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
from pathlib import Path

import pytest

from tests.endpoints import Endpoint
from tests.tui.commands_rig import DEMO, ROOT, Captured, run

# --- nothing at all

EVERY = [["once"], ["diagnose", "--for", "1s"], ["query", "up"], ["doctor"], ["record", "--for", "1s"]]


def _nothing(words: list[str], target: Path | str, tmp_path: Path, capsys: Captured) -> int:
    more = ["-o", str(tmp_path / "made.om")] if words[0] == "record" else []
    return run(capsys, *words, *more, str(target), "--interval", "200ms")[0]


@pytest.mark.parametrize("words", EVERY, ids=lambda words: words[0])
def test_a_list_without_targets_is_nothing(words: list[str], tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "none.json").write_text("[]")
    assert _nothing(words, f"file_sd:{tmp_path}/none.json", tmp_path, capsys) == 4


@pytest.mark.parametrize("words", EVERY[:4], ids=lambda words: words[0])
@pytest.mark.parametrize("text", ["", "# EOF\n", "vllm:num_requests_running{engine="], ids=["empty", "eof", "cut"])
def test_a_recording_without_samples_is_nothing(words: list[str], text: str, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "none.om").write_text(text)
    assert _nothing(words, tmp_path / "none.om", tmp_path, capsys) == 4


@pytest.mark.parametrize("words", EVERY, ids=lambda words: words[0])
def test_a_broken_objective_is_refused_by_every_command(words: list[str], tmp_path: Path, capsys: Captured) -> None:
    config = tmp_path / "kvtop.yml"
    config.write_text(f"targets: [{{path: {DEMO}}}]\nslo: ['rate(up[1m] < 2']\n")
    more = ["-o", str(tmp_path / "made.om")] if words[0] == "record" else []
    code, out, err = run(capsys, *words, *more, "--config", str(config))
    assert (code, out) == (2, "")
    assert "objective 'rate(up[1m] < 2'" in err
    assert err.count("\n") == 1


def test_a_broken_objective_is_refused_before_the_screen_opens(tmp_path: Path) -> None:
    config = tmp_path / "kvtop.yml"
    config.write_text(f"targets: [{{path: {DEMO}}}]\nslo: ['rate(up[1m] < 2']\n")
    pid, terminal = pty.fork()
    if pid == 0:
        words = [sys.executable, "-m", "tui.cli", "--config", str(config)]
        os.chdir(ROOT)
        os.execve(sys.executable, words, {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)})
    said = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end has gone
        while piece := os.read(terminal, 65536):
            said += piece
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    assert said.startswith(b"kvtop: objective 'rate(up[1m] < 2'"), "nothing was drawn before it"
    assert said.count(b"\n") == 1


# --- bad targets and secrets


@pytest.mark.parametrize(
    "words", [["once"], ["query", "up"], ["diagnose", "--for", "500ms"], ["doctor"]], ids=lambda words: words[0]
)
def test_secrets_are_never_printed(words: list[str], capsys: Captured) -> None:
    with Endpoint(behaviour="401") as endpoint:
        code, out, err = run(capsys, *words, f"http://reader:hunter2@{endpoint.target}/metrics?token=hunter3")
    assert code == 4
    assert "401" in out + err
    assert "hunter" not in out + err
    assert b"Authorization: Basic" in endpoint.requests[0]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("/no/such/file.om", "no such file"),
        ("ftp://host/x", "unknown scheme"),
        ("nvml:0", "nvml takes no argument"),
        ("host:99999", "out of range"),
    ],
)
def test_a_target_that_cannot_be_meant(target: str, says: str, capsys: Captured) -> None:
    code, _, err = run(capsys, "once", target)
    assert code == 2
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_file_that_is_no_recording(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("Dear diary,\ntoday nothing happened.\n")
    code, _, err = run(capsys, "query", "up", str(file))
    assert code == 4
    assert "notes.txt" in err
    assert len(err.splitlines()) == 1
