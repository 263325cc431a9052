"""The tables of docs/guide/tune.md are what `kvstore tune` prints; ``KVSCOPE_WRITE_DOCS=1`` writes them anew.

The tables of the whole trace are checked, and written, where ``KVSCOPE_TRACE`` names it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from kvstore.cli import main
from kvstore.replay.trace import excerpt, read_trace
from kvstore.tune.cards import card_of
from kvstore.tune.choice import reason
from kvstore.tune.costs import Assumptions, costs
from kvstore.tune.lengths import Lengths, of_trace
from kvstore.tune.models import model_of
from kvstore.tune.report import as_markdown
from kvstore.tune.setting import setting_of

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide" / "tune.md"
SIZES = (8, 16, 32, 64, 128)


def tables(lengths: Lengths) -> str:
    found = []
    for model in ("llama-3-8b", "llama-3-70b"):
        for gpu in ("A100-80G", "H100"):
            setting = setting_of(card_of(gpu), model_of(model))
            table = [costs(setting, lengths, size, Assumptions()) for size in SIZES]
            cards = "one card" if setting.ranks == 1 else f"{setting.ranks} cards"
            found.append(f"{gpu}, {model}, {cards}:\n\n{as_markdown(table)}\n\nTake {reason(table)}")
    return "\n\n".join(found)


def require(name: str, expected: str) -> None:
    """The part of the guide between the comment that begins with `name` and the next `<!-- end -->`."""
    text = GUIDE.read_text(encoding="utf-8")
    part = re.compile(rf"(<!-- {name}: [^\n]*-->\n)(.*?)(<!-- end -->)", re.DOTALL)
    if "KVSCOPE_WRITE_DOCS" in os.environ:
        text = part.sub(lambda match: f"{match[1]}\n{expected}\n\n{match[3]}", text)
        GUIDE.write_text(text, encoding="utf-8")
    shown = part.search(text)
    assert shown is not None
    assert shown[2].strip() == expected, "docs/guide/tune.md is out of date (see this module's text)"


def test_the_tables_of_the_excerpt() -> None:
    require("excerpt", tables(of_trace("excerpt", read_trace(excerpt()))))


def test_the_tables_of_the_whole_trace() -> None:
    path = os.environ.get("KVSCOPE_TRACE")
    if not path:
        pytest.skip("KVSCOPE_TRACE does not name Mooncake's conversation_trace.jsonl")
    require("whole trace", tables(of_trace("whole", read_trace(Path(path)))))


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["tune", "--model", "llama-3-8b", "--lengths", "150,0.8", "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_what_the_guide_says_of_short_chats(capsys: pytest.CaptureFixture[str]) -> None:
    assert "The A100\n  is told 16 (nearest, by its copies), the H100 32 (copies and 4.02 % empty" in GUIDE.read_text()
    for gpu, size, broken in (("A100-80G", 16, ["copies"]), ("H100", 32, ["copies", "empty slots"])):
        found = told(capsys, "--gpu", gpu)
        assert (found["recommended"], found["keeps_all_bounds"], found["broken"]) == (size, False, broken)
        sizes = {each["block_tokens"]: each for each in found["sizes"]}
        assert sizes[16]["tail_waste"] <= 0.04 < sizes[32]["tail_waste"]
        assert sizes[16]["copy_time"] > 0.1
        still = told(capsys, "--gpu", gpu, "--moved", "nothing")
        assert (still["recommended"], still["keeps_all_bounds"]) == (16, True)
    assert "empty slots would be 4.02%" in told(capsys, "--gpu", "H100")["reason"]
