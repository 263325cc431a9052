"""Pages of a real vLLM (0.32 on a CPU): the canonical reading is what the engine's clients counted."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from probes.promql.value import Vector
from probes.rules import RuleSet
from probes.series import SeriesStore
from probes.sources.info import info_labels
from probes.sources.ingest import TargetFrame
from probes.target import Target
from probes.view import View

PAGES = Path(__file__).parents[2] / "fixtures" / "vllm"
AT_MS = 1_700_000_000_000
WORKLOADS = ("idle", "shared-prefixes", "small-pool", "unique-prefixes")
# Signals that need a connector, an option that is off here, or another exporter.
ELSEWHERE = ("kv:transfer_", "kv:offload_", "kv:remote_", "kv:host_", "kv:gpu_", "kv:block_lifetime", "kv:block_idle")
ELSEWHERE += ("kv:block_reuse_gap", "kv:requests_kv_fetch", "kv:rdma_", "kv:tier_")


@cache
def rules() -> RuleSet:
    return RuleSet.load()


def view_of(workload: str) -> View:
    page = PAGES / f"{workload}.txt"
    if not page.exists():
        pytest.skip(f"no page {page}")
    store = SeriesStore()
    target = Target("http", "http://pod-1:8000/metrics", job="vllm", instance="pod-1:8000")
    frame = TargetFrame(store, target, info_labels())
    frame.write(AT_MS, frame.parser.parse(page.read_bytes()), 0.002)
    return View(store, rules())


def number(view: View, expr: str) -> float:
    value = view.instant(expr, AT_MS)
    assert isinstance(value, Vector)
    assert len(value) == 1, expr
    return float(value.values[0, 0])


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_real_page_fills_every_signal_that_needs_nothing_else(workload: str) -> None:
    view = view_of(workload)
    missing = []
    for entry in rules().vocabulary:
        if {dict(rule.labels).get("system") for rule in rules().rules_of(entry.series[0])} == {"kvstore"}:
            continue
        for series in entry.series:
            value = view.instant(series, AT_MS)
            assert isinstance(value, Vector)
            if not len(value) and not series.startswith(ELSEWHERE):
                missing.append(series)
    # Known after the second scrape only.
    assert set(missing) <= {"kv:scrape_samples_changed"}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_reading_is_what_the_engine_counted(workload: str) -> None:
    """The page was taken while the clients were at work: between the counters before and after."""
    view = view_of(workload)
    story = json.loads((PAGES / f"{workload}.json").read_text())
    before, after = story["counters"]["before"], story["counters"]["after"]
    for asked, counter in {
        "kv:prefix_cache_queries_total": "prefix_queries",
        "kv:prefix_cache_hits_total": "prefix_hits",
        "kv:preemptions_total": "preemptions",
        "kv:prompt_tokens_total": "prompt_tokens",
        "kv:generation_tokens_total": "generation_tokens",
        "sum(kv:requests_finished_total)": "requests_finished",
    }.items():
        assert before[counter] <= number(view, asked) <= after[counter], asked
    blocks, tokens = story["pool"]["blocks"], story["pool"]["block_tokens"]
    for asked, expected in {
        "kv:pool_blocks": blocks,
        "kv:block_tokens": tokens,
        "kv:pool_tokens": blocks * tokens,
        "kv:prefix_caching_enabled": 1,
        "kv:engine_awake": 1,
        "kv:requests_waiting_capacity + kv:requests_waiting_deferred - kv:requests_waiting": 0,
        "sum(kv:prompt_tokens_by_source_total) - sum(kv:prompt_tokens_total)": 0,
        "sum(kv:requests_finished_total) - sum(kv:e2e_seconds_count)": 0,
    }.items():
        assert number(view, asked) == expected, asked


def test_provenance_leads_back_to_the_engines_own_series() -> None:
    view = view_of("shared-prefixes")
    found = view.explain("kv:prefix_cache_hits_total / kv:prefix_cache_queries_total", AT_MS)
    names = {one.labels.name: one.value for one in found.inputs}
    assert names.keys() == {"vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"}
    assert found.value == names["vllm:prefix_cache_hits_total"] / names["vllm:prefix_cache_queries_total"]
