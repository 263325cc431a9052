"""What the engine itself says: its counters, read from a page by prometheus_client, a parser that is not ours."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from prometheus_client.parser import text_string_to_metric_families

# One field of ``Truth`` each. All are sums over the page's label sets (one engine, one model).
_SERIES = {
    "prefix_queries": "vllm:prefix_cache_queries_total",
    "prefix_hits": "vllm:prefix_cache_hits_total",
    "preemptions": "vllm:num_preemptions_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "requests_finished": "vllm:request_success_total",
    "usage": "vllm:kv_cache_usage_perc",
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
}


@dataclass(frozen=True)
class Truth:
    """The engine's counters (tokens, preemptions, requests) and gauges (usage a ratio, requests) at one moment."""

    prefix_queries: float
    prefix_hits: float
    preemptions: float
    prompt_tokens: float
    generation_tokens: float
    requests_finished: float
    usage: float
    running: float
    waiting: float
    pool_blocks: int
    block_tokens: int

    @classmethod
    def from_page(cls, page: str) -> Truth:
        """Read a page. Raises ``KeyError`` when a series that the engine must have is not there."""
        sums: dict[str, float] = {}
        config: dict[str, str] = {}
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
                if sample.name == "vllm:cache_config_info":
                    config = sample.labels
        return cls(
            **{name: sums[series] for name, series in _SERIES.items()},
            pool_blocks=int(config["num_gpu_blocks"]),
            block_tokens=int(config["block_size"]),
        )

    @property
    def quiet(self) -> bool:
        return self.running == 0 and self.waiting == 0

    def since(self, before: Truth) -> dict[str, float]:
        """Increase of each counter from ``before`` to this moment."""
        counters = [f.name for f in fields(self)][:6]
        return {name: getattr(self, name) - getattr(before, name) for name in counters}

    def as_dict(self) -> dict[str, float]:
        return asdict(self)
