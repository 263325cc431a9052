"""Run a scenario and write its recording: ``python -m playbooks.lab.compose NAME --seed S -o FILE``."""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .fleet import Fleet
from .scenarios import Truth, build, scenario_names

CORE_ENGINE = (
    "vllm:cache_config_info", "vllm:e2e_request_latency_seconds", "vllm:external_prefix_cache_hits",
    "vllm:external_prefix_cache_queries", "vllm:generation_tokens", "vllm:inter_token_latency_seconds",
    "vllm:kv_block_idle_before_evict_seconds", "vllm:kv_block_lifetime_seconds", "vllm:kv_block_reuse_gap_seconds",
    "vllm:kv_cache_usage_perc", "vllm:kv_offload_load_bytes", "vllm:kv_offload_load_time",
    "vllm:kv_offload_store_bytes", "vllm:kv_offload_store_time",
    "vllm:nixl_bytes_transferred", "vllm:nixl_num_descriptors",
    "vllm:nixl_num_failed_notifications", "vllm:nixl_num_failed_transfers", "vllm:nixl_num_kv_expired_reqs",
    "vllm:nixl_num_notifications_after_expiry", "vllm:nixl_post_time_seconds", "vllm:nixl_xfer_time_seconds",
    "vllm:num_preemptions", "vllm:num_requests_kv_fetch_by_stage", "vllm:num_requests_running",
    "vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason", "vllm:prefix_cache_hits",
    "vllm:prefix_cache_queries", "vllm:prompt_tokens", "vllm:prompt_tokens_by_source", "vllm:prompt_tokens_cached",
    "vllm:request_generation_tokens", "vllm:request_num_preemptions", "vllm:request_prefill_kv_computed_tokens",
    "vllm:request_prompt_tokens", "vllm:request_queue_time_seconds", "vllm:request_success",
    "vllm:time_to_first_token_seconds",
)  # fmt: skip
"""What a Prometheus with a sensible relabel rule keeps of an engine's page."""


@dataclass(frozen=True)
class Composed:
    """A recording (OpenMetrics text with timestamps) and what is true of it."""

    text: str
    truth: Truth


def compose(name: str, seed: int = 0, interval_s: float = 5, full: bool = False) -> Composed:
    """Run scenario ``name`` with ``seed``; ``full`` keeps every family. KeyError names the known scenarios."""
    stage = build(name, seed)
    recorder = stage.fleet.record(stage.seconds, interval_s)
    names = [n for n in recorder.names() if full or _kept(n, stage.keep)]
    truth = replace(stage.truth, ground=ground_truth(stage.fleet))
    return Composed(recorder.text(names), truth)


def _kept(name: str, keep: Sequence[str]) -> bool:
    return name in keep if keep else not name.startswith("vllm:") or name in CORE_ENGINE


def ground_truth(fleet: Fleet) -> dict[str, float]:
    """What only the simulator knows, at the end of the run: shares 0 to 1 and blocks, by pod."""
    found: dict[str, float] = {}
    for pod in fleet.pods:
        engine = pod.engine
        if engine is None:
            continue
        seen = engine.prefix.truth
        slots = (engine.pool.capacity - engine.pool.free_blocks) * engine.config.block_tokens
        found[f"{pod.name}/unused_slot_share"] = engine.unused_slots() / slots if slots else 0.0
        found[f"{pod.name}/hit_share"] = seen.hit / seen.looked_up if seen.looked_up else 0.0
        found[f"{pod.name}/infinite_hit_share"] = seen.would_hit / seen.looked_up if seen.looked_up else 0.0
        found[f"{pod.name}/evicted_then_wanted_blocks"] = float(seen.evicted_then_wanted)
        found[f"{pod.name}/leaked_blocks"] = float(engine.pool.leaked)
        found[f"{pod.name}/held_blocks"] = float(sum(len(blocks) for blocks in engine.held.values()))
    return found


def write(path: Path, text: str) -> None:
    """Write a recording; a name that ends in ``.gz`` is compressed (the same bytes every time)."""
    data = text.encode()
    path.write_bytes(gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m playbooks.lab.compose", description=__doc__)
    parser.add_argument("name", help="scenario, or 'list'")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--interval", type=float, default=5, help="seconds between scrapes")
    parser.add_argument("--full", action="store_true", help="keep every family")
    parser.add_argument("-o", "--output", type=Path, help="file to write (standard output by default)")
    options = parser.parse_args(arguments)
    if options.name == "list":
        print("\n".join(scenario_names()))
        return 0
    if options.name not in scenario_names():
        print(f"compose: no scenario {options.name!r}; 'list' shows them", file=sys.stderr)
        return 2
    made = compose(options.name, options.seed, options.interval, options.full)
    if options.output is None:
        sys.stdout.write(made.text)
    else:
        write(options.output, made.text)
    print({key: value for key, value in asdict(made.truth).items() if key != "ground"}, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
