"""What an engine writes down about a request: at its first token and at its end."""

from __future__ import annotations

from .meters import EngineMeters
from .request import Request


def count_first_token(meters: EngineMeters, request: Request, now: float) -> None:
    """The prompt is computed and a token came out at ``now``: the first, or the first after a preemption."""
    meters.generation_tokens += 1
    if request.first_token >= 0:
        meters.token_gap.observe(now - request.last_token)
        return
    request.first_token = now
    meters.ttft.observe(now - request.arrival)
    meters.prompt_tokens += request.prompt
    sources = meters.prompt_by_source
    sources["local_compute"] += request.prefilled
    where = "external_kv_transfer" if request.fetch else "local_cache_hit"
    sources[where] += request.prompt - request.prefilled


def count_finished(meters: EngineMeters, request: Request, reason: str, now: float) -> None:
    """The request ended at ``now`` for ``reason``; phases that it never reached are not observed."""
    meters.success[reason] += 1
    meters.http["2xx"] += 1
    meters.e2e.observe(now - request.arrival)
    if request.first_token >= 0:
        meters.queue.observe(request.first_scheduled - request.arrival)
        meters.prefill.observe(request.first_token - request.first_scheduled)
        meters.inference.observe(request.last_token - request.first_scheduled)
        meters.decode.observe(request.last_token - request.first_token)
        if request.generated > 1:
            meters.per_token.observe((request.last_token - request.first_token) / (request.generated - 1))
    meters.prompt_length.observe(float(request.prompt))
    meters.generation_length.observe(float(request.generated))
    meters.max_generation.observe(float(request.generated))
    meters.params_n.observe(1.0)
    meters.params_max_tokens.observe(float(request.max_tokens))
    meters.request_preemptions.observe(float(request.preemptions))
    meters.computed_tokens.observe(float(request.prefilled))
