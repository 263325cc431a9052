"""The page of a simulated vLLM V1 engine: families as data, and the classic text that prometheus_client writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from .meters import INF, EngineMeters, Histogram
from .scheduler import Engine

LabelPairs = tuple[tuple[str, str], ...]
Sample = tuple[str, LabelPairs, float]
"""(suffix, labels sorted by name, value)."""


@dataclass(slots=True)
class Family:
    """One metric family; ``name`` is without ``_total``. ``kind``: counter, gauge, histogram or unknown."""

    name: str
    kind: str
    help: str
    samples: list[Sample] = field(default_factory=list)

    def one(self, value: float, labels: LabelPairs = ()) -> Family:
        """Add a sample under the family's natural name."""
        self.samples.append(("_total" if self.kind == "counter" else "", labels, value))
        return self

    def split(self, label: str, values: Mapping[str, float], labels: LabelPairs = ()) -> Family:
        """Add one sample for each value of ``label``."""
        for text, value in values.items():
            self.one(value, merged(labels, (label, text)))
        return self

    def histogram(self, meter: Histogram, labels: LabelPairs = ()) -> Family:
        """Add the buckets, the count and the sum."""
        for bound, count in meter.cumulative():
            self.samples.append(("_bucket", merged(labels, ("le", number(bound))), float(count)))
        self.samples.append(("_count", labels, float(meter.count)))
        self.samples.append(("_sum", labels, meter.total))
        return self


@lru_cache(maxsize=1 << 16)
def merged(labels: LabelPairs, *more: tuple[str, str]) -> LabelPairs:
    return tuple(sorted((*labels, *more)))


def number(value: float) -> str:
    """A float as prometheus_client writes it."""
    if value == INF:
        return "+Inf"
    text = repr(float(value))
    return text.replace("e-0", "e-") if "e-0" in text else text


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """The engine's process as its own page reports it (seconds, bytes, Unix time)."""

    start_time: float
    cpu_seconds: float
    resident_bytes: float


HISTOGRAMS: tuple[tuple[str, str, str], ...] = (
    ("vllm:request_prompt_tokens", "prompt_length", "Number of prefill tokens processed."),
    ("vllm:request_generation_tokens", "generation_length", "Number of generation tokens processed."),
    ("vllm:iteration_tokens_total", "step_tokens", "Histogram of number of tokens per engine_step."),
    ("vllm:request_max_num_generation_tokens", "max_generation", "Maximum number of requested generation tokens."),
    ("vllm:request_params_n", "params_n", "The n request parameter."),
    ("vllm:request_params_max_tokens", "params_max_tokens", "The max_tokens request parameter."),
    ("vllm:time_to_first_token_seconds", "ttft", "Time to first token in seconds."),
    ("vllm:inter_token_latency_seconds", "token_gap", "Inter-token latency in seconds."),
    ("vllm:request_time_per_output_token_seconds", "per_token", "Time per output token of a request in seconds."),
    ("vllm:e2e_request_latency_seconds", "e2e", "End-to-end request latency in seconds."),
    ("vllm:request_queue_time_seconds", "queue", "Time spent in the WAITING phase."),
    ("vllm:request_inference_time_seconds", "inference", "Time spent in the RUNNING phase."),
    ("vllm:request_prefill_time_seconds", "prefill", "Time spent in the PREFILL phase."),
    ("vllm:request_decode_time_seconds", "decode", "Time spent in the DECODE phase."),
    ("vllm:request_num_preemptions", "request_preemptions", "Preemptions of a request."),
    ("vllm:request_prefill_kv_computed_tokens", "computed_tokens", "New KV tokens computed during prefill."),
)


def engine_families(engine: Engine, model: str, rank: str = "0") -> list[Family]:
    """Every ``vllm:`` family of one engine rank."""
    labels: LabelPairs = (("engine", rank), ("model_name", model))
    meters = engine.meters
    families = [*_gauges(engine, labels), *_counters(meters, model, labels)]
    families += [Family(name, "histogram", text).histogram(getattr(meters, meter), labels)
                 for name, meter, text in HISTOGRAMS]  # fmt: skip
    families += _residency(meters, labels)
    families += _transfers(meters, labels)
    families.append(_cache_config(engine, rank))
    return families


def _gauges(engine: Engine, labels: LabelPairs) -> list[Family]:
    capacity, deferred = engine.waiting_capacity, engine.waiting_deferred
    moving = sum(1 for request in engine.fetching if request.blocks)
    stages: dict[str, float] = {"waiting_to_start": deferred - moving, "in_progress": moving, "completed_waiting": 0}
    sleep = {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0}
    families = [
        Family("vllm:num_requests_running", "gauge", "Requests in model execution batches.").one(
            float(len(engine.running)), labels
        ),
        Family("vllm:num_requests_waiting", "gauge", "Requests waiting to be processed.").one(
            float(capacity + deferred), labels
        ),
        Family("vllm:num_requests_waiting_by_reason", "gauge", "Requests waiting, by reason.").split(
            "reason", {"capacity": capacity, "deferred": deferred}, labels
        ),
        Family("vllm:engine_sleep_state", "gauge", "Engine sleep state.").split("sleep_state", sleep, labels),
        Family("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.").one(
            engine.pool.usage, labels
        ),
    ]
    if engine.config.transfers:
        families.append(
            Family("vllm:num_requests_kv_fetch_by_stage", "gauge", "Requests in a KV load, by stage.").split(
                "stage", stages, labels
            )
        )
    return families


def _counters(meters: EngineMeters, model: str, labels: LabelPairs) -> list[Family]:
    source = meters.prompt_by_source
    cached = {"device": source["local_cache_hit"], "host": 0, "p2p": 0, "disk": 0,
              "external_unspecified": source["external_kv_transfer"]}  # fmt: skip
    rejected = {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}
    single = (
        ("vllm:estimated_flops_per_gpu", 0, "Estimated floating point operations per GPU."),
        ("vllm:estimated_read_bytes_per_gpu", 0, "Estimated bytes read from memory per GPU."),
        ("vllm:estimated_write_bytes_per_gpu", 0, "Estimated bytes written to memory per GPU."),
        ("vllm:prefix_cache_queries", meters.prefix_queries, "Prefix cache queries, in queried tokens."),
        ("vllm:prefix_cache_hits", meters.prefix_hits, "Prefix cache hits, in cached tokens."),
        ("vllm:external_prefix_cache_queries", meters.external_queries, "External prefix cache queries, in tokens."),
        ("vllm:external_prefix_cache_hits", meters.external_hits, "External prefix cache hits, in tokens."),
        ("vllm:mm_cache_queries", 0, "Multi-modal cache queries."),
        ("vllm:mm_cache_hits", 0, "Multi-modal cache hits."),
        ("vllm:num_preemptions", meters.preemptions, "Cumulative number of preemptions."),
        ("vllm:prompt_tokens", meters.prompt_tokens, "Prefill tokens processed."),
        ("vllm:prompt_tokens_cached", source["local_cache_hit"] + source["external_kv_transfer"],
         "Cached prompt tokens, local and external."),
        ("vllm:generation_tokens", meters.generation_tokens, "Generation tokens processed."),
    )  # fmt: skip
    families = [Family(name, "counter", text).one(float(value), labels) for name, value, text in single]
    families += [
        Family("vllm:prompt_tokens_by_source", "counter", "Prompt tokens, by source.").split("source", source, labels),
        Family("vllm:prompt_tokens_cached_by_source", "counter", "Cached prompt tokens, by source.").split(
            "source", cached, labels
        ),
        Family("vllm:request_success", "counter", "Requests processed.").split(
            "finished_reason", meters.success, labels
        ),
        Family("vllm:admission_rejections", "counter", "Requests rejected at admission.").split(
            "reason", rejected, (("model_name", model),)
        ),
    ]
    return families


def _residency(meters: EngineMeters, labels: LabelPairs) -> list[Family]:
    found = meters.residency
    if found is None:
        return []
    return [
        Family("vllm:kv_block_lifetime_seconds", "histogram", "Allocation to eviction of a KV block.").histogram(
            found.lifetime, labels
        ),
        Family("vllm:kv_block_idle_before_evict_seconds", "histogram", "Idle time before eviction.").histogram(
            found.idle_before_evict, labels
        ),
        Family("vllm:kv_block_reuse_gap_seconds", "histogram", "Gap between accesses of a KV block.").histogram(
            found.reuse_gap, labels
        ),
    ]


def _transfers(meters: EngineMeters, labels: LabelPairs) -> list[Family]:
    found = meters.transfers
    if found is None:
        return []
    families = [
        Family(f"vllm:nixl_{name}", "histogram", text).histogram(getattr(found, name), labels)
        for name, text in (
            ("xfer_time_seconds", "Duration of a NIXL transfer."),
            ("post_time_seconds", "Time to post a NIXL transfer."),
            ("bytes_transferred", "Bytes of a NIXL transfer."),
            ("num_descriptors", "Descriptors of a NIXL transfer."),
        )
    ]
    families += [
        Family(f"vllm:nixl_{name}", "counter", text).one(float(getattr(found, name)), labels)
        for name, text in (
            ("num_failed_transfers", "Failed NIXL transfers."),
            ("num_failed_notifications", "Failed NIXL notifications."),
            ("num_kv_expired_reqs", "Requests whose KV expired before it was read."),
            ("num_notifications_after_expiry", "Notifications that came after the expiry."),
        )
    ]
    return families


def _cache_config(engine: Engine, rank: str) -> Family:
    config = engine.config
    told = {
        "block_size": str(config.block_tokens),
        "cache_dtype": "auto",
        "enable_prefix_caching": str(config.prefix_caching),
        "engine": rank,
        "gpu_memory_utilization": "0.9",
        "kv_cache_size_tokens": str(config.num_blocks * config.block_tokens),
        "num_gpu_blocks": str(config.num_blocks),
        "prefix_caching_hash_algo": "sha256",
        "sliding_window": "None",
    }
    return Family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig").one(
        1.0, tuple(sorted(told.items()))
    )


def process_families(facts: ProcessFacts, meters: EngineMeters) -> list[Family]:
    """The process and HTTP families beside the engine's own."""
    handler: LabelPairs = (("handler", "/v1/chat/completions"), ("method", "POST"))
    answered = {status: count for status, count in meters.http.items() if count}
    return [
        Family("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.").one(facts.resident_bytes),
        Family("process_start_time_seconds", "gauge", "Start time of the process, Unix time.").one(facts.start_time),
        Family("process_cpu_seconds", "counter", "Total user and system CPU time spent in seconds.").one(
            round(facts.cpu_seconds, 2)
        ),
        Family("http_requests", "counter", "Total number of requests by method, status and handler.").split(
            "status", answered or {"2xx": 0.0}, handler
        ),
    ]


def classic_text(families: Iterable[Family]) -> str:
    """The classic text format, as prometheus_client's default registry writes it (without ``_created``)."""
    lines: list[str] = []
    for family in families:
        name = family.name + "_total" if family.kind == "counter" else family.name
        kind = "untyped" if family.kind == "unknown" else family.kind
        lines += [f"# HELP {name} {family.help}", f"# TYPE {name} {kind}"]
        lines += [f"{family.name}{suffix}{braces(labels)} {number(value)}" for suffix, labels, value in family.samples]
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=1 << 16)
def braces(labels: LabelPairs) -> str:
    """Labels as the text formats write them."""
    return "{" + ",".join(f'{key}="{_escape(value)}"' for key, value in labels) + "}" if labels else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
