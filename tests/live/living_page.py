"""A vLLM page whose counters grow as a small healthy engine's would, served by ``tests/endpoints.py``."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from tests.endpoints import Endpoint

LABELS = 'engine="0",model_name="tiny"'
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


def page(age_s: float, start_s: float, *, without: tuple[str, ...] = ()) -> str:
    """The page of an engine that has run for ``age_s`` since ``start_s`` (Unix); ``without`` leaves families out."""
    requests, tokens = age_s * 4, age_s * 400
    families: list[tuple[str, str, list[tuple[str, float]]]] = [
        ("vllm:num_requests_running", "gauge", [("", 3 + round(age_s * 10) % 2)]),
        ("vllm:num_requests_waiting", "gauge", [("", 0)]),
        ("vllm:kv_cache_usage_perc", "gauge", [("", 0.25 + (round(age_s * 10) % 5) / 100)]),
        ("vllm:num_preemptions", "counter", [("_total", 0)]),
        ("vllm:prefix_cache_queries", "counter", [("_total", tokens)]),
        ("vllm:prefix_cache_hits", "counter", [("_total", tokens * 0.8)]),
        ("vllm:prompt_tokens", "counter", [("_total", tokens)]),
        ("vllm:generation_tokens", "counter", [("_total", age_s * 200)]),
        ("vllm:time_to_first_token_seconds", "histogram", _histogram(requests, 0.04)),
        ("vllm:inter_token_latency_seconds", "histogram", _histogram(age_s * 196, 0.02)),
        ("vllm:request_queue_time_seconds", "histogram", _histogram(requests, 0.005)),
    ]
    lines = [f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {start_s:.2f}"]
    lines.append(f"# TYPE process_cpu_seconds counter\nprocess_cpu_seconds_total {age_s * 0.7:.3f}")
    for name, kind, samples in families:
        if name not in without:
            lines.append(f"# TYPE {name} {kind}")
            lines += [_line(name, suffix, value) for suffix, value in samples]
    lines.append("# TYPE vllm:request_success counter")
    lines.append(f'vllm:request_success_total{{{LABELS},finished_reason="stop"}} {requests:.0f}')
    info = f'{LABELS},block_size="16",num_gpu_blocks="4096",enable_prefix_caching="True"'
    lines.append(f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{info}}} 1")
    return "\n".join(lines) + "\n"


def _histogram(count: float, at_s: float) -> list[tuple[str, float]]:
    rows = [(f'_bucket|le="{le}"', count if at_s <= le else 0.0) for le in _BUCKETS]
    return [*rows, ('_bucket|le="+Inf"', count), ("_count", count), ("_sum", count * at_s)]


def _line(name: str, suffix: str, value: float) -> str:
    suffix, _, extra = suffix.partition("|")
    labels = LABELS + (f",{extra}" if extra else "")
    return f"{name}{suffix}{{{labels}}} {value:.6g}"


class LivingPage:
    """Renews an endpoint's page every 50 ms from a thread, until the ``with`` block ends."""

    def __init__(self, endpoint: Endpoint, without: tuple[str, ...] = ()) -> None:
        self._endpoint, self._without = endpoint, without
        self._born = time.time() - 600
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def restart(self) -> None:
        """As a process that starts anew: counters at 0, another start time."""
        self._born = time.time()

    def __enter__(self) -> LivingPage:
        self._renew()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _live(self) -> None:
        while not self._stop.wait(0.05):
            self._renew()

    def _renew(self) -> None:
        self._endpoint.page = page(time.time() - self._born, self._born, without=self._without).encode()
