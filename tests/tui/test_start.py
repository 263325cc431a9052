"""What a command loads before it answers: each module costs its time at every start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.endpoints import Endpoint

ROOT = Path(__file__).resolve().parents[2]
NOT_FOR_ONE_SCRAPE = {"asyncio", "ssl", "logging", "subprocess", "yaml", "jsonschema", "textual", "rich", "shutil"}
SPY = """
import json, sys
from tui.cli import main
code = main(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


def loaded(*words: str) -> set[str]:
    """The top-level modules that a command loads; its answer must be a success."""
    done = subprocess.run(
        [sys.executable, "-c", SPY, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    code, names = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("words", [["once"], ["once", "--json"], ["query", "kv:requests_running"]], ids=" ".join)
def test_one_scrape_of_one_target_loads_no_event_loop(words: list[str]) -> None:
    with Endpoint() as endpoint:
        assert loaded(*words, endpoint.target) & NOT_FOR_ONE_SCRAPE == set()


def test_several_targets_are_asked_side_by_side() -> None:
    with Endpoint() as one, Endpoint() as other:
        assert "asyncio" in loaded("once", one.target, other.target)


def test_a_program_ends_with_what_it_has_written(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        words = [sys.executable, "-m", "tui.cli", "once", endpoint.target, "--json"]
        with (tmp_path / "out.json").open("wb") as out:
            done = subprocess.run(words, cwd=ROOT, stdout=out, timeout=60)
    assert done.returncode == 0
    assert json.loads((tmp_path / "out.json").read_text("utf-8"))["schema"] == "kvscope.reading/1"
