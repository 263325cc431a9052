"""Hand-built snapshots with a fixed clock: what the screen is drawn from in tests and in the docs' screenshots."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from playbooks.verdict import (
    Command,
    CoreCheck,
    Diagnosis,
    Event,
    Evidence,
    Finding,
    Overall,
    Quantity,
    Refutation,
    Undecided,
    Verdict,
)
from probes.labels import Labels
from tui.cursor import Cursor, Mode
from tui.fleet import fleet
from tui.panels import BY_NAME, PANELS
from tui.reading import FLEET, EntityReading, Reading, State, sort_key
from tui.snapshot import Snapshot, SourceView
from tui.trail import Key, Trail
from tui.vocabulary import vocabulary

NOW = 1_771_149_900_000  # 2026-02-15 10:05:00 UTC
ONSET = NOW - 165_000
SPAN = 300_000
UNSUPPORTED = ("kv:offload_load_bytes:rate", "kv:offload_store_bytes:rate", "kv:external_prefix_hit_ratio")

FULL: Mapping[str, float] = {
    "kv:pool_usage_ratio": 0.994,
    "kv:pool_tokens": 434_176,
    "kv:requests_running": 31,
    "kv:requests_waiting": 47,
    "kv:preemptions:rate": 0.42,
    "kv:prefix_hit_ratio": 0.412,
    "kv:prompt_tokens:rate": 18_400,
    "kv:generation_tokens:rate": 1_240,
    "kv:ttft_seconds:p50": 1.9,
    "kv:ttft_seconds:p99": 8.42,
    "kv:inter_token_seconds:p50": 0.021,
    "kv:inter_token_seconds:p99": 0.094,
    "kv:queue_seconds:p99": 6.8,
    "kv:transfer_bytes_sum:rate": 1.9e9,
    "kv:transfer_seconds:p99": 0.081,
    "kv:transfer_failures:rate": 0.0,
    "kv:transfer_expired:rate": 0.0,
    "kv:restarts": 0,
}
CALM: Mapping[str, float] = {
    **FULL,
    "kv:pool_usage_ratio": 0.512,
    "kv:requests_running": 18,
    "kv:requests_waiting": 0,
    "kv:preemptions:rate": 0.0,
    "kv:prefix_hit_ratio": 0.633,
    "kv:ttft_seconds:p50": 0.142,
    "kv:ttft_seconds:p99": 0.48,
    "kv:inter_token_seconds:p99": 0.038,
    "kv:queue_seconds:p99": 0.011,
}


def wave(panel: str, final: float, seed: int, onset: bool) -> Trail:
    """Five minutes at 5 s that end in ``final``; with ``onset`` calm until then and rising after it."""
    times = tuple(range(NOW - SPAN, NOW + 1, 5000))
    calm = CALM.get(panel, final)
    values = []
    for index, time in enumerate(times):
        share = min(1.0, max(0.0, (time - ONSET) / 90_000)) if onset else 1.0
        base = calm + (final - calm) * share
        ripple = 1 + 0.06 * math.sin(index * 0.9 + seed) + 0.03 * math.sin(index * 2.3 + seed * 2)
        value = base * ripple
        values.append(min(1.0, value) if BY_NAME[panel].unit == "ratio" else value)
    values[-1] = final
    return Trail(times, tuple(values))


def row(name: str, numbers: Mapping[str, float], state: State = State.FRESH, age: float = 0.4) -> EntityReading:
    """One engine with these numbers; panels without one are unsupported."""
    values = {}
    for panel in PANELS:
        if panel.name in numbers:
            why = "connection refused" if state is State.STALE else ""
            values[panel.name] = Reading(numbers[panel.name], panel.unit, state, age, why)
        else:
            why = f"{name} has no {', '.join(panel.needs)}"
            values[panel.name] = Reading(None, panel.unit, State.UNSUPPORTED, None, why)
    return EntityReading({"instance": name, "engine": "0", "model_name": "qwen3-8b", "system": "vllm"}, values)


def source(target: str, state: str = "fresh", error: str = "", age: float | None = 0.4) -> SourceView:
    names = tuple(vocabulary())
    present = tuple(n for n in names if vocabulary()[n].group in ("capacity", "queue", "prefix", "work", "latency"))
    absent = tuple(n for n in names if n not in present)
    seen = state in ("fresh", "stale", "refused")
    return SourceView(
        target=f"http://{target}/metrics",
        state=state,
        error=error,
        age_s=age,
        samples=520 if seen else None,
        page_bytes=46_120 if seen else None,
        duration_s=0.0043 if seen else None,
        families=57 if seen else None,
        instances=(target,),
        present=present if seen else (),
        absent=absent if seen else (),
        name=target,
        silent_s=None if state in ("fresh", "empty") else 60.0 if age is None else age,
    )


def trails(rows: list[EntityReading], troubled: str = "") -> dict[Key, Trail]:
    found: dict[Key, Trail] = {}
    for seed, one in enumerate(rows):
        for name, reading in one.values.items():
            if reading.value is not None:
                found[(name, one.key)] = wave(name, reading.value, seed, one.name == troubled)
    return found


def exhausted() -> Finding:
    """The finding of the incident picture."""
    return Finding(
        cause="kv-capacity-exhausted",
        title="The KV pool is full and requests queue for it",
        verdict=Verdict.LIKELY,
        member={"instance": "pod-1:8000"},
        evidence=(
            Evidence(
                "pool_full",
                "avg_over_time(kv:pool_usage_ratio[1m])",
                0.994,
                ">",
                0.97,
                "physical",
                60,
                "a pool without a free block preempts or queues",
                says="the pool is 99.4 % in use",
            ),
            Evidence(
                "queue_grows",
                "avg_over_time(kv:requests_waiting[1m])",
                44.1,
                ">",
                1,
                "policy",
                60,
                "house rule",
                says="44 requests wait on average",
            ),
            Evidence(
                "queue_time",
                "histogram_quantile(0.99, sum by (le, instance) (rate(kv:queue_seconds_bucket[1m])))",
                6.8,
                ">",
                1,
                "measured",
                60,
                "17 times its own first two minutes",
                says="queue time p99 is 6.8 s, before it was 11 ms",
            ),
        ),
        refuted=(
            Refutation("traffic-surge", "arrivals_rose", "the arrival rate is what it was (1.02 of before)"),
            Refutation("pool-leak", "usage_without_work", "usage follows the running requests"),
            Refutation("preemption-thrash", "same_requests", "no request was preempted twice"),
        ),
        explains=("ttft-high", "preemptions"),
        cost={"requests_delayed": Quantity(47, "requests"), "wait_added_p99": Quantity(6.79, "seconds")},
        what_if=("Two more GiB of KV memory (gpu_memory_utilization 0.92) hold 16 k more tokens.",),
        remedies=(
            "Give the pool more memory: raise --gpu-memory-utilization, or use an FP8 KV cache",
            "Shorten what is held: lower --max-model-len or --max-num-seqs",
            "Spread the load: pod-2:8000 has 48 % of its pool free",
        ),
        confirm=(
            Command("curl -s http://pod-1:8000/metrics | grep kv_cache_usage", "read-only"),
            Command("kvtop diagnose pod-1:8000 --for 2m", "read-only"),
        ),
        onset_ms=ONSET,
        summary="pool 99.4 % full, 47 waiting, TTFT p99 8.42 s (was 0.48 s); traffic is unchanged",
        doc="docs/runbooks/kv-capacity-exhausted.md",
    )


CORE_BAD = (
    CoreCheck("capacity", True, "pod-1:8000 is 99.4 % full"),
    CoreCheck("queue", True, "47 wait on pod-1:8000"),
    CoreCheck("preemption", False, "25 a minute, none twice"),
    CoreCheck("latency", True, "TTFT p99 17 times its earlier self"),
    CoreCheck("freshness", False, "all targets fresh"),
)
CORE_FINE = (
    CoreCheck("capacity", False, "fullest pool 51 %"),
    CoreCheck("queue", False, "nobody waits"),
    CoreCheck("preemption", False, "none"),
    CoreCheck("latency", None, "no objective and no earlier window to compare with"),
    CoreCheck("freshness", False, "all targets fresh"),
)
UNKNOWN = (
    Undecided(
        "internal-fragmentation",
        {"instance": "pod-1:8000"},
        ("kv:request_prompt_tokens",),
        "The engine shows it from vLLM 0.8 on; check for a relabel rule that drops it.",
        "no length histogram",
    ),
    Undecided("stuck-transfer", {}, ("kv:transfer_seconds",), "Run with a KV connector."),
)


def shot_of(rows: list[EntityReading], troubled: str = "", **more: object) -> Snapshot:
    total = fleet(rows, PANELS, {name: {FLEET: (v,)} for name, v in FULL.items() if BY_NAME[name].fleet})
    found = trails(rows, troubled)
    if len(rows) > 1:
        for name, reading in total.values.items():
            if reading.value is not None:
                found[(name, FLEET)] = wave(name, reading.value, 7, bool(troubled))
    base = Snapshot(
        NOW,
        NOW,
        1000,
        60_000,
        SPAN,
        Cursor(Mode.LIVE, NOW, NOW - SPAN, NOW),
        rows=tuple(rows),
        fleet=total,
        trails=found,
        sources=tuple(source(r.labels["instance"]) for r in rows),
        label="3 targets",
    )
    return replace(base, **more)  # type: ignore[arg-type]


def diagnosis(verdict: Overall, **more: object) -> Diagnosis:
    return replace(Diagnosis(verdict, NOW - SPAN, NOW), **more)  # type: ignore[arg-type]


def incident() -> Snapshot:
    """Three engines, one of them full since 10:02:15."""
    rows = [row("pod-1:8000", FULL), row("pod-2:8000", CALM), row("pod-3:8000", {**CALM, "kv:pool_usage_ratio": 0.921})]
    events = (
        Event(NOW - 240_000, "restart", {"instance": "pod-3:8000"}, "process started anew"),
        Event(NOW - 100_000, "gap", {"instance": "pod-2:8000"}, "no sample for 12 s"),
    )
    found = diagnosis(Overall.FINDING, findings=(exhausted(),), unknown=UNKNOWN, core=CORE_BAD)
    return shot_of(rows, "pod-1:8000", diagnosis=found, events=events)


def healthy() -> Snapshot:
    rows = [row("pod-1:8000", CALM)]
    return shot_of(rows, diagnosis=diagnosis(Overall.HEALTHY, core=CORE_FINE, unknown=UNKNOWN))


def fleet_of(count: int) -> Snapshot:
    rows = [
        row(f"pod-{i}:8000", {**CALM, "kv:pool_usage_ratio": 0.3 + 0.04 * i, "kv:requests_waiting": i % 5})
        for i in range(1, count + 1)
    ]
    rows.sort(key=lambda r: sort_key(r.labels))
    return shot_of(rows, diagnosis=diagnosis(Overall.HEALTHY, core=CORE_FINE))


def sixteen() -> Snapshot:
    return fleet_of(16)


def stale() -> Snapshot:
    """One engine answers, one does not any more, one target never did."""
    rows = [row("pod-1:8000", CALM), row("pod-2:8000", FULL, State.STALE, 42.0)]
    found = diagnosis(Overall.UNKNOWN, core=(*CORE_FINE[:4], CoreCheck("freshness", True, "pod-2:8000 is silent")))
    sources = (
        source("pod-1:8000"),
        source("pod-2:8000", "refused", "connection refused: nothing listens on pod-2:8000", 42.0),
        source("pod-9:8000", "timeout", "no answer within 5 s", None),
    )
    return shot_of(rows, diagnosis=found, sources=sources)


def nothing() -> Snapshot:
    """One target that answers with a page without a known signal."""
    empty = replace(source("pod-1:8000", "empty", "the page has no sample"), samples=0, present=(), absent=())
    found = diagnosis(Overall.UNKNOWN, core=tuple(CoreCheck(c.name, None) for c in CORE_FINE))
    return shot_of([], diagnosis=found, sources=(empty,))


def unsupported_names() -> tuple[str, ...]:
    return UNSUPPORTED


def entity(name: str) -> Labels:
    return Labels.of({"instance": name, "engine": "0"})
