"""Options of a simulated engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one step: ``base + prompt tokens * prefill + requests in decode * decode + live tokens * context``."""

    base: float = 0.011
    prefill: float = 0.00006
    decode: float = 0.00008
    context: float = 3e-8
    noise: float = 0.05


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Options of one engine; ``watermark`` is the share of the pool that admission leaves free."""

    num_blocks: int
    block_tokens: int = 16
    max_num_seqs: int = 256
    max_batched_tokens: int = 8192
    max_model_len: int = 131072
    watermark: float = 0.0
    prefix_caching: bool = True
    transfers: bool = False
    producer: bool = False
    residency_sample: int = 0
    cost: StepCost = StepCost()
