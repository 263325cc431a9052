"""The incident that ships with the package: a time stamp in a system prompt, and everything that follows from it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from .config import EngineConfig, StepCost
from .fleet import Fleet, Pod, make_gpu
from .hardware import GPUS, Node
from .scenarios import Cast, Stage, Truth, scenario
from .workload import Lengths, SharedPrefixes, Stream, UnstablePrefix

START = 1_773_756_000
"""2026-03-17 14:00:00 UTC."""
ROLL_OUT_S = 240.0
STABLE_TOKENS = 41

DEMO_FAMILIES = (
    "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_DRAM_ACTIVE",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "http_requests", "process_cpu_seconds",
    "process_resident_memory_bytes", "process_start_time_seconds", "up", "vllm:cache_config_info",
    "vllm:generation_tokens", "vllm:inter_token_latency_seconds", "vllm:kv_block_idle_before_evict_seconds",
    "vllm:kv_block_reuse_gap_seconds", "vllm:kv_cache_usage_perc", "vllm:num_preemptions",
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason",
    "vllm:prefix_cache_hits", "vllm:prefix_cache_queries", "vllm:prompt_tokens", "vllm:prompt_tokens_by_source",
    "vllm:request_generation_tokens", "vllm:request_num_preemptions", "vllm:request_prefill_kv_computed_tokens",
    "vllm:request_prompt_tokens", "vllm:request_queue_time_seconds", "vllm:request_success",
    "vllm:time_to_first_token_seconds",
)  # fmt: skip


@scenario("demo")
def demo(cast: Cast) -> Stage:
    """Ten minutes of three pods; at minute 4 the new template reaches the second one."""
    cost = StepCost(base=0.017, prefill=4.4e-5, decode=1.0e-4, context=3e-8)
    config = EngineConfig(num_blocks=6800, residency_sample=25, cost=cost)
    tail = Lengths(290, 0.55, 12)
    old = SharedPrefixes(Random(f"{cast.seed}/old"), 2, Lengths(2900, 0.05), tail, skew=0.6)
    new = UnstablePrefix(STABLE_TOKENS, 4000, tail)
    pods = [_pod(cast, index, config, old) for index in range(3)]
    fleet = Fleet(START, pods, [Node("node-a", Random(f"{cast.seed}/node"))], warm_s=90.0)
    victim = pods[1]
    fleet.events.at(ROLL_OUT_S, lambda _now: setattr(victim.streams[0], "family", new))
    truth = Truth(
        "prefix-key-unstable",
        {"instance": victim.instance},
        ROLL_OUT_S,
        must_not=("healthy", "prefix-capacity-miss", "traffic-surge", "pool-leak"),
        why="The new template writes the time near the start of the prompt: from there on nothing is ever the same.",
    )
    return Stage(fleet, truth, 600.0, DEMO_FAMILIES)


def _pod(cast: Cast, index: int, config: EngineConfig, family: SharedPrefixes) -> Pod:
    rng = Random(f"{cast.seed}/demo/{index}")
    gpu = make_gpu("node-a", index, rng, replace(GPUS[0]))
    pod = Pod(f"pod-{index + 1}", "llama-3-8b", config, rng, gpu, uptime=rng.uniform(2, 6) * 86_400)
    stream = Stream(2.6, family, Lengths(250, 0.5, 8, 1024), Random(f"{cast.seed}/stream/{index}"), max_tokens=1024)
    stream.impatient, stream.patience = 0.01, 20.0
    pod.streams.append(stream)
    return pod
