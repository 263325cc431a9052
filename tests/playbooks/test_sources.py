"""What sources do to a diagnosis: targets that never answer, numbers that cannot be, too little data."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from playbooks.engine import Case, diagnose
from playbooks.grid import Grid
from playbooks.playbook import load_playbooks
from playbooks.verdict import Diagnosis, Overall, SourceLine
from probes.labels import Labels
from probes.rules import RuleSet
from probes.series import SeriesStore
from probes.view import View

START = 1_700_000_000_000
RULES = RuleSet.load()
PLAYBOOKS = load_playbooks()
STEADY = {
    "vllm:kv_cache_usage_perc": 0.3,
    "vllm:num_requests_running": 4.0,
    "vllm:num_requests_waiting": 0.0,
    "vllm:num_preemptions_total": 0.0,
    "up": 1.0,
}
COUNTED = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:request_success_total")


def given(seconds: int, sources: tuple[SourceLine, ...] = (), **changes: float) -> Diagnosis:
    """Diagnose one engine at 1 Hz; keyword arguments replace the value of a gauge or counter by the end of its name."""
    store = SeriesStore()
    frame = store.frame("engine")
    values = {name: next((v for k, v in changes.items() if name.endswith(k)), value) for name, value in STEADY.items()}
    for second in range(seconds + 1):
        now = dict(values)
        if not changes.get("frozen"):
            now |= dict.fromkeys(COUNTED, 10.0 * second)
        now["kvscope_scrape_samples_changed"] = 0.0 if changes.get("frozen") else 3.0
        rows, column = [], []
        for name, value in now.items():
            labels = {"instance": "a:1", "job": "vllm"} | ({"engine": "0"} if name.startswith("vllm") else {})
            rows.append(frame.row(Labels.of(labels, name)))
            column.append(value)
        frame.append(START + 1000 * second, np.array(rows, dtype=np.intp), np.array(column))
    grid = Grid(START, START + 1000 * seconds, 1000)
    return diagnose(View(store, RULES), Case(grid, sources), PLAYBOOKS, RULES)


def causes(diagnosis: Diagnosis) -> list[str]:
    return [finding.cause for finding in diagnosis.findings]


def test_a_steady_engine_is_healthy() -> None:
    assert given(120, (SourceLine("a:1", "fresh", 0.0),)).verdict is Overall.HEALTHY


def test_a_target_that_never_answered_is_not_healthy() -> None:
    dead = SourceLine("b:1", "refused", None, "connection refused")
    diagnosis = given(120, (SourceLine("a:1", "fresh", 0.0), dead))
    assert diagnosis.verdict is Overall.UNKNOWN
    assert diagnosis.exit_code() == 3
    assert [(u.resource, dict(u.member)) for u in diagnosis.unexplained] == [("freshness", {"instance": "b:1"})]
    assert "connection refused" in diagnosis.unexplained[0].says
    assert next(c for c in diagnosis.core if c.name == "freshness").bad is True


@pytest.mark.parametrize("name", ["kv_cache_usage_perc", "num_requests_waiting", "num_preemptions_total"])
def test_a_negative_count_is_a_blind_source(name: str) -> None:
    assert causes(given(120, **{name: -5.0})) == ["source-blind"]


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_infinite_or_missing_share_decides_nothing(value: float) -> None:
    diagnosis = given(120, kv_cache_usage_perc=value)
    assert diagnosis.verdict is Overall.UNKNOWN
    assert next(c for c in diagnosis.core if c.name == "capacity").bad is None


def test_a_page_must_stand_still_for_a_while_to_be_called_frozen() -> None:
    short = given(10, frozen=1.0)
    assert "source-blind" not in causes(short)
    assert "source-blind" in {u.cause for u in short.unknown}
    assert causes(given(60, frozen=1.0)) == ["source-blind"]


def test_a_cut_recording_makes_nothing_likely(tmp_path: Path) -> None:
    whole = Path(__file__).parents[2] / "playbooks" / "recordings" / "demo.om.gz"
    cut = tmp_path / "cut.om.gz"
    cut.write_bytes(whole.read_bytes()[:100_000])
    done = subprocess.run(
        [sys.executable, "-m", "tui.cli", "diagnose", str(cut), "--json"], capture_output=True, text=True, timeout=120
    )
    found = json.loads(done.stdout)
    assert {one["verdict"] for one in found["findings"]} <= {"suspected"}
    assert "a recording is cut" in subprocess.run(
        [sys.executable, "-m", "tui.cli", "diagnose", str(cut)], capture_output=True, text=True, timeout=120
    ).stdout.replace("\n", " ")
