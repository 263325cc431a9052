"""How to turn on a signal that a target does not give."""

from __future__ import annotations

from fnmatch import fnmatchcase

# Canonical names by pattern, first match wins. Releases and options are those of the vLLM adapter's own comments
# (probes/engines/vllm.rules.yml), which come from the sources of the engine's releases.
_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("kv:block_*_seconds",),
        "start vLLM (0.12 or newer) with --kv-cache-metrics; --kv-cache-metrics-sample sets the share of blocks",
    ),
    (("kv:modelled_*",), "start vLLM (0.17 or newer) with --enable-mfu-metrics"),
    (("kv:transfer_*", "kv:requests_kv_fetch"), "only an engine with a KV connector for transfers (NIXL) has it"),
    (("kv:external_prefix_*", "kv:remote_*"), "only an engine with a KV connector has it"),
    (("kv:offload_*", "kv:host_pool_*"), "only an engine that offloads KV (--kv-offloading-size, …) has it"),
    (
        ("kv:pool_tokens", "kv:pool_bytes", "kv:pool_max_concurrency"),
        "newer vLLM only; kvtop uses blocks × tokens of a block",
    ),
    (("kv:pool_blocks", "kv:block_tokens", "kv:prefix_caching_enabled"), "comes with vllm:cache_config_info"),
    (("kv:requests_waiting_*",), "vLLM 0.20 or newer"),
    (("kv:request_preemptions",), "vLLM 0.30 or newer"),
    (("kv:prompt_tokens_by_source_total", "kv:prompt_tokens_cached_total"), "vLLM 0.16 or newer"),
    (("kv:prompt_tokens_cached_by_tier_total", "kv:admission_rejections_total"), "vLLM 0.33 or newer"),
    (("kv:request_computed_tokens",), "vLLM 0.14 or newer"),
    (("kv:engine_awake",), "vLLM with sleep mode"),
    (
        ("kv:gpu_process_*", "kv:gpu_nvlink_up", "kv:gpu_nvlink_rate_*", "kv:gpu_lost"),
        "only the target nvml tells it, on the GPUs' host",
    ),
    (
        ("kv:gpu_*",),
        "on the GPUs' host add the target nvml; else the node's dcgm-exporter (host:9400), with the counters that "
        "`kvtop rules --dcgm-csv` prints: its own leave out SM activity, throttling and NVLink errors",
    ),
    (("kv:host_*",), "add the node's node_exporter as a target (host:9100)"),
    (("kv:process_*",), "the target's client library does not export its process"),
    (("kv:http_requests_total",), "the server does not count its HTTP requests"),
)
_ELSE = "this release of the engine does not export it (or runs with --disable-log-stats)"


def advice(name: str) -> str:
    """One line for a canonical name."""
    for patterns, says in _ADVICE:
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return says
    return _ELSE
