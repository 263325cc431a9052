"""What the tests of the commands share: the packaged incident, and a command run in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tui.cli import main

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "playbooks" / "recordings" / "demo.om.gz"
CULPRIT = "pod-2:8000"
Captured = pytest.CaptureFixture[str]


def run(capsys: Captured, *words: str) -> tuple[int, str, str]:
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


def run_json(capsys: Captured, *words: str) -> tuple[int, Any]:
    code, out, _ = run(capsys, *words, "--json")
    return code, json.loads(out)
