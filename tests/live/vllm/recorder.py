"""The simplest possible recorder: a page every second or so, kept as OpenMetrics with timestamps.

It is a second opinion beside ``kvtop record`` and shares no code with the product. Samples get ``job`` and
``instance`` and the scrape's own series, as a Prometheus would have stored them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.live.vllm.client import Client

JOB, INSTANCE = "vllm", "127.0.0.1:8000"

# Families that a reading or a diagnosis of a vLLM may ask for; the other half of the page is left out.
KEPT = (
    "process_cpu_seconds",
    "process_start_time_seconds",
    "http_requests",
    "vllm:cache_config_info",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_waiting_by_reason",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:external_prefix_cache_queries",
    "vllm:external_prefix_cache_hits",
    "vllm:num_preemptions",
    "vllm:prompt_tokens",
    "vllm:prompt_tokens_by_source",
    "vllm:generation_tokens",
    "vllm:request_success",
    "vllm:admission_rejections",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_num_preemptions",
    "vllm:request_prefill_kv_computed_tokens",
)
# The configuration is one sample with forty labels; these are the ones that somebody reads.
_CONFIG_LABELS = (
    "block_size",
    "cache_dtype",
    "enable_prefix_caching",
    "engine",
    "gpu_memory_utilization",
    "num_gpu_blocks",
    "num_gpu_blocks_override",
    "sliding_window",
)

Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Scrape:
    """One page: when it was asked for (Unix seconds), how long the answer took (seconds), and its text."""

    at: float
    took: float
    page: str


class Recorder:
    """Scrapes ``url`` every ``step_s`` seconds from ``start`` to ``stop``."""

    def __init__(self, url: str, step_s: float) -> None:
        self._client = Client(url, timeout_s=10.0)
        self._step_s = step_s
        self._over = threading.Event()
        self._scrapes: list[Scrape] = []
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> list[Scrape]:
        self._over.set()
        self._thread.join()
        self._client.close()
        return self._scrapes

    def _loop(self) -> None:
        due = time.time()
        while not self._over.is_set():
            self.scrape()
            due += self._step_s
            self._over.wait(max(0.0, due - time.time()))

    def scrape(self) -> None:
        at = time.time()
        page = self._client.page()
        self._scrapes.append(Scrape(at, time.time() - at, page))


def openmetrics(scrapes: Sequence[Scrape]) -> str:
    """One OpenMetrics text of all scrapes: families contiguous, each series' samples in order of time, ``# EOF``."""
    series: dict[str, tuple[str, dict[Key, dict[float, float]]]] = {}
    before: dict[Key, float] = {}
    for scrape in scrapes:
        values: dict[Key, float] = {}
        for family in text_string_to_metric_families(scrape.page):
            for sample in family.samples:
                values[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
            if family.name in KEPT:
                _keep(series, family, scrape.at)
        changed = sum(1 for key, value in values.items() if before.get(key) != value) if before else len(values)
        before = values
        for name, value in _scrape_series(scrape, len(values), changed):
            _put(series, name, "gauge", (name, ()), scrape.at, value)
    return _text(series)


def _scrape_series(scrape: Scrape, samples: int, changed: int) -> Iterable[tuple[str, float]]:
    yield "up", 1.0
    yield "scrape_duration_seconds", round(scrape.took, 6)
    yield "scrape_samples_scraped", float(samples)
    yield "kvscope_scrape_samples_changed", float(changed)


def _keep(series: dict[str, tuple[str, dict[Key, dict[float, float]]]], family: Metric, at: float) -> None:
    for sample in family.samples:
        if sample.name.endswith("_created"):
            continue
        labels = sample.labels
        if sample.name == "vllm:cache_config_info":
            labels = {k: v for k, v in labels.items() if k in _CONFIG_LABELS}
        key = (sample.name, tuple(sorted(labels.items())))
        _put(series, family.name, family.type, key, at, sample.value)


def _put(
    series: dict[str, tuple[str, dict[Key, dict[float, float]]]],
    family: str,
    kind: str,
    key: Key,
    at: float,
    value: float,
) -> None:
    series.setdefault(family, (kind, {}))[1].setdefault(key, {})[at] = value


def _text(series: dict[str, tuple[str, dict[Key, dict[float, float]]]]) -> str:
    lines: list[str] = []
    for family, (kind, members) in sorted(series.items()):
        lines.append(f"# TYPE {family} {kind}")
        drop = _idle_buckets(members) if kind == "histogram" else set()
        for key, points in members.items():
            if key in drop:
                continue
            labels = sorted({**dict(key[1]), "instance": INSTANCE, "job": JOB}.items())
            inside = ",".join(f'{name}="{value}"' for name, value in labels)
            lines.extend(f"{key[0]}{{{inside}}} {_number(value)} {at:.3f}" for at, value in points.items())
    return "\n".join([*lines, "# EOF", ""])


def _idle_buckets(members: dict[Key, dict[float, float]]) -> set[Key]:
    """Buckets that count the same as both neighbours all the time: no quantile changes when they are left out."""
    ladders: dict[Key, list[Key]] = {}
    for name, labels in members:
        bounded = dict(labels)
        if bounded.pop("le", None) is not None:
            ladders.setdefault((name, tuple(sorted(bounded.items()))), []).append((name, labels))
    drop: set[Key] = set()
    for ladder in ladders.values():
        ladder.sort(key=lambda key: float(dict(key[1])["le"]))
        columns = [[0.0] * len(members[ladder[0]]), *(list(members[key].values()) for key in ladder)]
        for at, key in enumerate(ladder[:-1]):
            if columns[at] == columns[at + 1] == columns[at + 2]:
                drop.add(key)
    return drop


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
