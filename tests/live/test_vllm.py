"""kvtop attached to a real vLLM: ``make test-vllm`` (an own environment of about 4 GB, ten to fifteen minutes).

Every workload runs once; the tests then ask what the engine, the client and kvtop said about it. docs/vllm-lab.md
tells how to hold such an engine by hand.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.live.vllm.capture import SETTLE_S, quiet_page, settled_page, warm_up
from tests.live.vllm.kvtop import Answer, Recording, kvtop, standing
from tests.live.vllm.serve import Engine, Lab
from tests.live.vllm.truth import Truth
from tests.live.vllm.workloads import ALL, SMALL_POOL, UNIQUE_PREFIXES, Ledger, Load, Workload

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.environ.get("KVSCOPE_TEST_VLLM") != "1", reason="needs a real vLLM: make test-vllm"),
]

WINDOW = os.environ.get("KVSCOPE_VLLM_WINDOW", "60s")

# kv:* name → the engine's own number for it
COUNTERS = {
    "kv:prefix_cache_queries_total": "prefix_queries",
    "kv:prefix_cache_hits_total": "prefix_hits",
    "kv:preemptions_total": "preemptions",
    "kv:prompt_tokens_total": "prompt_tokens",
    "kv:generation_tokens_total": "generation_tokens",
}
GAUGES = {
    "kv:pool_usage_ratio": "usage",
    "kv:requests_running": "running",
    "kv:requests_waiting": "waiting",
    "kv:pool_blocks": "pool_blocks",
    "kv:block_tokens": "block_tokens",
}


@dataclass(frozen=True)
class Run:
    """One workload as three parties saw it: the client, the engine, kvtop."""

    workload: Workload
    instance: str
    before: Truth
    after: Truth
    ledger: Ledger
    reading: Answer
    held: Truth
    held_reading: Answer
    live: Answer
    recording: Path
    recorded: Answer


class Engines:
    """One engine at a time, started again when a workload asks for another pool."""

    def __init__(self) -> None:
        self._lab: Lab | None = None
        self._engine: Engine | None = None

    def for_(self, workload: Workload) -> Engine:
        wanted = (workload.blocks, workload.max_seqs)
        if self._engine is not None and (self._engine.blocks, self._engine.max_seqs) == wanted:
            return self._engine
        self.stop()
        self._lab = self._lab or Lab.prepare()
        self._engine = Engine(self._lab, blocks=workload.blocks, max_seqs=workload.max_seqs).__enter__()
        warm_up(self._engine.url)
        return self._engine

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.stop()
            self._engine = None


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    held = Engines()
    yield held
    held.stop()


@pytest.fixture(scope="module", params=ALL, ids=lambda workload: workload.name)
def run(request: pytest.FixtureRequest, engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return observe(engines.for_(request.param), request.param, tmp_path_factory.mktemp(request.param.name))


def observe(engine: Engine, workload: Workload, directory: Path) -> Run:
    """Drive the workload, with ``kvtop record`` and ``kvtop diagnose`` on the engine at the same time."""
    target = engine.url + "/metrics"
    before = Truth.from_page(quiet_page(engine.url))
    load = Load(engine.url, workload)
    recording = None
    try:
        load.start()
        time.sleep(SETTLE_S if workload.workers else 1.0)
        recording = Recording(target, directory / f"{workload.name}.om")
        recording.await_samples()
        live = kvtop("diagnose", target, "--for", WINDOW, "--json")
        recording.kill()
        with engine.held_still():
            held = Truth.from_page(settled_page(engine.url))
            held_reading = kvtop("once", target, "--json")
    finally:
        if recording is not None:
            recording.kill()
        ledger = load.stop()
    after = Truth.from_page(quiet_page(engine.url))
    reading = kvtop("once", target, "--json")
    recorded = kvtop("diagnose", str(recording.file), "--json")
    seen = Run(
        workload=workload,
        instance=f"127.0.0.1:{engine.port}",
        before=before,
        after=after,
        ledger=ledger,
        reading=reading,
        held=held,
        held_reading=held_reading,
        live=live,
        recording=recording.file,
        recorded=recorded,
    )
    report(seen)
    return seen


def report(seen: Run) -> None:
    """One line a workload for the log (``pytest -s``): the figures and the verdict."""
    grown = seen.after.since(seen.before)
    hits, queries = grown["prefix_hits"], grown["prefix_queries"]
    ratio = f"{hits / queries:.4f}" if queries else "no queries"
    said = standing(seen.live.json)
    print(
        f"\n{seen.workload.name}: requests {grown['requests_finished']:.0f},"
        f" hit ratio {ratio} ({hits:.0f}/{queries:.0f}), preemptions {grown['preemptions']:.0f},"
        f" exit {seen.live.code}, {said['verdict']}, findings {said['findings']}, unknown {len(said['unknown'])}"
    )


def entity(reading: Any, instance: str) -> dict[str, Any]:
    """All values of the reading's entities of this instance, by kv:* name."""
    values: dict[str, Any] = {}
    for one in reading["entities"]:
        if one["labels"].get("instance") == instance:
            values.update(one["values"])
    return values


def causes(diagnosis: Any) -> list[str]:
    return [finding["cause"] for finding in diagnosis["findings"]]


def test_the_engine_counts_what_the_client_sent(run: Run) -> None:
    """The oracle itself: what the workload's construction foretells is what the engine counted."""
    grown = run.after.since(run.before)
    assert run.ledger.errors == []
    assert grown["requests_finished"] == run.ledger.requests
    assert grown["prompt_tokens"] == run.ledger.prompt_tokens
    assert grown["generation_tokens"] == run.ledger.completion_tokens
    assert grown["prefix_queries"] == run.ledger.prompt_tokens
    if run.workload.exact_hits:
        assert grown["prefix_hits"] == run.ledger.expected_hits
        assert grown["preemptions"] == 0
    else:
        assert grown["preemptions"] >= 5


def agrees(answer: Answer, instance: str, truth: Truth) -> None:
    assert answer.code == 0, answer.err
    values = entity(answer.json, instance)
    for name, field in {**COUNTERS, **GAUGES}.items():
        assert name in values, f"{name} is not in the reading"
        assert values[name]["value"] == getattr(truth, field), name
        assert values[name]["state"] == "fresh", name


def test_once_reads_what_the_engine_counts_at_rest(run: Run) -> None:
    assert run.after.quiet
    agrees(run.reading, run.instance, run.after)


def test_once_reads_what_the_engine_counts_under_load(run: Run) -> None:
    """The engine's core is stopped in the middle of its work, so that the page stands still with blocks in use."""
    if run.workload is SMALL_POOL:
        assert run.held.usage > 0.5
        assert run.held.running >= 1
    agrees(run.held_reading, run.instance, run.held)


def test_the_diagnosis_is_right(run: Run) -> None:
    said = run.live.json
    if run.workload is SMALL_POOL:
        assert run.live.code == 1
        assert causes(said)[0] in ("preemption-thrash", "kv-capacity-exhausted")
        assert said["findings"][0]["member"].get("instance") == run.instance
        assert said["findings"][0]["verdict"] in ("likely", "confirmed")
        return
    assert said["verdict"] == "healthy", said["findings"] or said["unexplained"]
    assert said["findings"] == []
    assert run.live.code == 0
    if run.workload is UNIQUE_PREFIXES:
        # Counters cannot tell prompts that never repeat from a key that is never the same.
        assert "prefix-key-unstable" in {one["cause"] for one in said["unknown"]}


def test_a_recording_cut_by_kill_9_gives_the_same_diagnosis(run: Run) -> None:
    assert run.recorded.code == run.live.code, run.recorded.err
    assert standing(run.recorded.json) == standing(run.live.json)


def test_a_recording_holds_the_counters_between_before_and_after(run: Run) -> None:
    answer = kvtop("query", "vllm:prefix_cache_queries_total", str(run.recording), "--json")
    assert answer.code == 0, answer.err
    (sample,) = answer.json["result"]
    assert run.before.prefix_queries <= float(sample["value"][1]) <= run.after.prefix_queries


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_a_repaired_recording_loads_into_prometheus(run: Run, tmp_path: Path) -> None:
    cut = tmp_path / "cut.om"
    shutil.copy(run.recording, cut)
    mended = kvtop("record", "--repair", str(cut))
    assert mended.code == 0, mended.err
    loaded = subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(cut), str(tmp_path / "tsdb")],
        capture_output=True,
        text=True,
    )
    assert loaded.returncode == 0, loaded.stderr
