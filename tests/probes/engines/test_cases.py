"""What the adapters make of whole recordings: which canonical names have data, with which labels."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from probes.promql.value import Vector
from probes.rules import RuleSet
from probes.series import SeriesStore
from probes.sources.recording import RecordingSource
from probes.view import View

CASES = Path(__file__).parents[3] / ".." / "shared" / "cases"

# What a vLLM of today fills on any page, whatever its connectors (a reduced page may lack some).
ALWAYS = {
    "kv:pool_usage_ratio", "kv:pool_blocks", "kv:block_tokens", "kv:prefix_caching_enabled", "kv:requests_running",
    "kv:requests_waiting", "kv:requests_finished_total", "kv:preemptions_total", "kv:prefix_cache_queries_total",
    "kv:prefix_cache_hits_total", "kv:prompt_tokens_total", "kv:generation_tokens_total", "kv:ttft_seconds_bucket",
    "kv:up", "kv:gpu_utilization_ratio", "kv:gpu_dram_active_ratio", "kv:gpu_memory_used_bytes", "kv:gpu_power_watts",
    "kv:gpu_sm_clock_hertz", "kv:host_cpu_pressure_seconds_total",
}  # fmt: skip
TRANSFER = {
    "kv:transfer_seconds_bucket", "kv:transfer_post_seconds_bucket", "kv:transfer_bytes_sum",
    "kv:transfer_descriptors_sum", "kv:transfer_failures_total", "kv:transfer_notification_failures_total",
    "kv:transfer_expired_total", "kv:transfer_late_notifications_total",
}  # fmt: skip
OFFLOAD = {
    "kv:offload_load_bytes_total", "kv:offload_store_bytes_total", "kv:offload_load_seconds_total",
    "kv:offload_store_seconds_total", "kv:offload_load_operation_bytes_bucket", "kv:offload_pinned_ratio",
    "kv:offload_allocation_failures_total", "kv:offload_stores_skipped_total",
}  # fmt: skip


def cases(engine: str) -> list[str]:
    """The stems of the bundles with this engine; the other fields are for scoring only."""
    found = [p.stem for p in sorted(CASES.glob("*.json")) if json.loads(p.read_text())["engine"] == engine]
    return found or ["absent"]


@cache
def packaged_rules() -> RuleSet:
    return RuleSet.load()


def loaded(case: str) -> tuple[View, int]:
    if case == "absent":
        pytest.skip("the recordings of ../shared/cases are not here")
    store = SeriesStore()
    RecordingSource(case, CASES / f"{case}.om", store)
    span = store.span()
    assert span is not None
    return View(store, packaged_rules(), mode="2"), span[1]


def filled(view: View, at_ms: int) -> set[str]:
    """The canonical series names that had data within ten minutes."""
    found = set()
    for entry in packaged_rules().vocabulary:
        for series in entry.series:
            value = view.instant(f"present_over_time({series}[10m])", at_ms)
            assert isinstance(value, Vector)
            if len(value):
                found.add(series)
    return found


@pytest.mark.parametrize("case", [c for e in ("vllm", "vllm+nixl", "vllm+offload", "vllm+lmcache") for c in cases(e)])
def test_a_recording_fills_what_its_raw_series_allow(case: str) -> None:
    view, at_ms = loaded(case)
    rules = packaged_rules()
    have = filled(view, at_ms)
    assert ALWAYS - have == set()
    stored = set(view.store.names())
    for entry in rules.vocabulary:
        for series in entry.series:
            assert (series in have) == bool(stored.intersection(rules.sources(series))), series


@pytest.mark.parametrize("case", cases("vllm+nixl")[:2])
def test_a_disaggregated_engine_fills_the_transfer_signals(case: str) -> None:
    view, at_ms = loaded(case)
    assert TRANSFER - filled(view, at_ms) == set()


@pytest.mark.parametrize("case", cases("vllm+offload")[:1])
def test_an_offloading_engine_fills_the_offload_signals(case: str) -> None:
    view, at_ms = loaded(case)
    assert OFFLOAD - filled(view, at_ms) == set()


@pytest.mark.parametrize("case", cases("vllm+nixl")[:1])
def test_rdma_series_keep_the_port(case: str) -> None:
    view, at_ms = loaded(case)
    for name in ("transmit_bytes_total", "rate_bytes_per_second", "sequence_errors_total", "congestion_marks_total"):
        found = view.instant(f"kv:rdma_{name}", at_ms)
        assert isinstance(found, Vector)
        assert len(found)
        for one in found.labels:
            assert one.get("system") == "rdma"
            assert one.get("device").startswith("mlx5_")
            assert (one.get("port"), one.get("job")) == ("1", "node")
            assert one.get("instance")


@pytest.mark.parametrize("case", cases("vllm+lmcache")[:2])
def test_a_cache_tier_keeps_what_identifies_it(case: str) -> None:
    view, at_ms = loaded(case)
    held = view.instant("kv:tier_usage_bytes", at_ms)
    asked = view.instant("kv:tier_lookup_tokens_total", at_ms)
    assert isinstance(held, Vector)
    assert isinstance(asked, Vector)
    assert len(held)
    assert len(asked)
    for one in (*held.labels, *asked.labels):
        assert one.get("system") == "lmcache"
        assert one.get("worker_id") or one.get("otel_scope_name")
        assert bool(one.get("worker_id")) == bool(one.get("model_name"))
    assert {one.get("tier") for one in held.labels} == {"host"}


@pytest.mark.parametrize("case", cases("vllm")[:1])
def test_canonical_series_keep_their_labels_and_units(case: str) -> None:
    view, at_ms = loaded(case)
    usage = view.instant("kv:pool_usage_ratio", at_ms)
    assert isinstance(usage, Vector)
    for labels in usage.labels:
        assert set(labels.as_dict()) == {"__name__", "instance", "job", "model_name", "engine", "system"}
        assert (labels.name, labels.get("system")) == ("kv:pool_usage_ratio", "vllm")
    assert np.all((usage.values >= 0) & (usage.values <= 1))
    for asked, raw in {
        "kv:gpu_utilization_ratio": "DCGM_FI_DEV_GPU_UTIL / 100",
        "kv:gpu_memory_used_bytes": "DCGM_FI_DEV_FB_USED * 1024 * 1024",
        "kv:gpu_sm_clock_hertz": "DCGM_FI_DEV_SM_CLOCK * 1e6",
        "rate(kv:host_cpu_pressure_seconds_total[1m])": "rate(node_pressure_cpu_waiting_seconds_total[1m])",
        "kv:requests_finished_total": "vllm:request_success_total",
    }.items():
        mine, theirs = view.instant(f"sum({asked})", at_ms), view.instant(f"sum({raw})", at_ms)
        assert isinstance(mine, Vector)
        assert isinstance(theirs, Vector)
        assert len(mine) == len(theirs) == 1
        np.testing.assert_allclose(mine.values, theirs.values, rtol=1e-12)
    reasons = view.instant("count by (reason, finished_reason) (kv:requests_finished_total)", at_ms)
    assert isinstance(reasons, Vector)
    assert {labels.get("reason") for labels in reasons.labels} >= {"stop", "length"}
    assert not any(labels.get("finished_reason") for labels in reasons.labels)
