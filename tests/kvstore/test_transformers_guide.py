"""The guide's example does what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra transformers)")
pytest.importorskip("transformers", reason="transformers is not installed (extra transformers)")

ROOT = Path(__file__).resolve().parents[2]


def test_the_guides_conversation() -> None:
    text = (ROOT / "docs/guide/store.md").read_text(encoding="utf-8")
    (example,) = [code for code in re.findall(r"```python\n(.*?)```", text, re.S) if "StoreCache.open" in code]
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, cwd=ROOT, timeout=240)
    assert done.returncode == 0, done.stderr
    # A reply of 16 tokens has KV for all but its last; 12 new ones follow it.
    assert done.stdout.splitlines() == [
        f"turn {turn}: {40 + 28 * (turn - 1)} tokens, {held} of them from the store"
        for turn, held in ((1, 0), (2, 55), (3, 83))
    ]
