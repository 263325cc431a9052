"""Recordings of a real vLLM (docs/vllm-lab.md): kvtop reads them exactly and diagnoses them rightly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tui.cli import main

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "vllm"
WORKLOADS = ("idle", "shared-prefixes", "unique-prefixes", "small-pool")
COUNTERS = {
    "kv:prefix_cache_queries_total": "prefix_queries",
    "kv:prefix_cache_hits_total": "prefix_hits",
    "kv:preemptions_total": "preemptions",
    "kv:prompt_tokens_total": "prompt_tokens",
    "kv:generation_tokens_total": "generation_tokens",
}


def truth(name: str) -> dict[str, Any]:
    """What the engine itself counted while the recording was made."""
    story: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return story


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main([*words, "--json"])
    out, err = capsys.readouterr()
    assert out, err
    return code, json.loads(out)


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_client_and_the_engine_agreed_when_it_was_recorded(name: str) -> None:
    story = truth(name)
    sent, counted = story["client"], story["counters"]["increase"]
    assert sent["errors"] == []
    assert counted["requests_finished"] == sent["requests"]
    assert counted["prefix_queries"] == counted["prompt_tokens"] == sent["prompt_tokens"]
    assert sent["expected_hits"] in (None, counted["prefix_hits"])


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("signal", COUNTERS)
def test_a_counters_growth_is_the_engines_own(name: str, signal: str, capsys: pytest.CaptureFixture[str]) -> None:
    ranged = f"max_over_time({signal}[1h]) - min_over_time({signal}[1h])"
    code, data = answer(capsys, "query", ranged, str(FIXTURES / f"{name}.om"))
    assert code == 0
    (row,) = data["result"]
    assert float(row["value"][1]) == truth(name)["window"]["increase"][COUNTERS[signal]]


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_pools_peak_is_the_engines_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, data = answer(capsys, "query", "max_over_time(kv:pool_usage_ratio[1h])", str(FIXTURES / f"{name}.om"))
    (row,) = data["result"]
    assert float(row["value"][1]) == pytest.approx(truth(name)["window"]["usage_max"], abs=5e-5)


@pytest.mark.parametrize("name", ["idle", "shared-prefixes", "unique-prefixes"])
def test_a_healthy_engine_is_healthy(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = answer(capsys, "diagnose", str(FIXTURES / f"{name}.om"))
    assert (code, said["verdict"], said["findings"], said["unexplained"]) == (0, "healthy", [], [])
    # Counters cannot tell prompts that never repeat from a key that is never the same; shared prefixes refute it.
    undecided = {one["cause"] for one in said["unknown"]}
    assert ("prefix-key-unstable" in undecided) == (name == "unique-prefixes")


def test_a_pool_too_small_is_thrash_on_that_engine(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = answer(capsys, "diagnose", str(FIXTURES / "small-pool.om"))
    assert (code, said["verdict"]) == (1, "finding")
    first = said["findings"][0]
    assert (first["cause"], first["verdict"]) == ("preemption-thrash", "likely")
    assert first["member"] == {"instance": "127.0.0.1:8000"}
    evidence = {one["test"]: one["value"] for one in first["evidence"]}
    window = truth("small-pool")["window"]["increase"]
    per_request = window["preemptions"] / window["requests_finished"]
    assert evidence["again_and_again"] == pytest.approx(per_request, rel=0.25)
    assert evidence["requests_suffered"] == pytest.approx(per_request, rel=0.25)
