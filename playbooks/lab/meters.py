"""Counters and histograms that an engine keeps, with vLLM V1's names and bucket bounds."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, fields

INF = float("inf")

TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
        160.0, 640.0, 2560.0)  # fmt: skip
TOKEN_GAP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
REQUEST = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
           960.0, 1920.0, 7680.0)  # fmt: skip
STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
PARAMS_N = (1.0, 2.0, 5.0, 10.0, 20.0)
RESIDENCY = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0,
             600.0, 1200.0, 1800.0)  # fmt: skip
TRANSFER = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
POST = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
TRANSFER_BYTES = tuple(float(2 ** (10 + i)) for i in range(1, 25, 2))
DESCRIPTORS = (10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0, 10000.0, 20000.0, 50000.0)


def length_bounds(max_model_len: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 … as far as the model's context goes, as vLLM builds them."""
    found: list[float] = []
    scale = 1
    while True:
        for mantissa in (1, 2, 5):
            if mantissa * scale > max_model_len:
                return tuple(found)
            found.append(float(mantissa * scale))
        scale *= 10


class Histogram:
    """Prometheus histogram: ``bounds`` are inclusive upper limits, ``counts`` are per bucket (not cumulative)."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """(upper bound, observations up to it), ending with infinity."""
        found, running = [], 0
        for bound, count in zip((*self.bounds, INF), self.counts, strict=True):
            running += count
            found.append((bound, running))
        return found

    def scale(self, factor: int) -> None:
        self.counts = [count * factor for count in self.counts]
        self.total *= factor


@dataclass(slots=True)
class TransferMeters:
    """What the NIXL connector reports, one observation a transfer."""

    xfer_time_seconds: Histogram = field(default_factory=lambda: Histogram(TRANSFER))
    post_time_seconds: Histogram = field(default_factory=lambda: Histogram(POST))
    bytes_transferred: Histogram = field(default_factory=lambda: Histogram(TRANSFER_BYTES))
    num_descriptors: Histogram = field(default_factory=lambda: Histogram(DESCRIPTORS))
    num_failed_transfers: int = 0
    num_failed_notifications: int = 0
    num_kv_expired_reqs: int = 0
    num_notifications_after_expiry: int = 0


@dataclass(slots=True)
class ResidencyMeters:
    """Opt-in block residency (seconds), sampled."""

    lifetime: Histogram = field(default_factory=lambda: Histogram(RESIDENCY))
    idle_before_evict: Histogram = field(default_factory=lambda: Histogram(RESIDENCY))
    reuse_gap: Histogram = field(default_factory=lambda: Histogram(RESIDENCY))

    def evicted(self, lifetime: float, idle: float, gaps: list[float]) -> None:
        self.lifetime.observe(lifetime)
        self.idle_before_evict.observe(idle)
        for gap in gaps:
            self.reuse_gap.observe(gap)


class EngineMeters:
    """Everything one engine counts over its life."""

    def __init__(self, max_model_len: int, transfers: bool = False, residency: bool = False) -> None:
        lengths = length_bounds(max_model_len)
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.external_queries = 0
        self.external_hits = 0
        self.preemptions = 0
        self.prompt_tokens = 0
        self.prompt_by_source = {"local_compute": 0, "local_cache_hit": 0, "external_kv_transfer": 0}
        self.generation_tokens = 0
        self.success = {"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0}
        self.http = {"2xx": 0, "4xx": 0, "5xx": 0}
        self.ttft = Histogram(TTFT)
        self.token_gap = Histogram(TOKEN_GAP)
        self.per_token = Histogram(TOKEN_GAP)
        self.e2e = Histogram(REQUEST)
        self.queue = Histogram(REQUEST)
        self.inference = Histogram(REQUEST)
        self.prefill = Histogram(REQUEST)
        self.decode = Histogram(REQUEST)
        self.step_tokens = Histogram(STEP_TOKENS)
        self.prompt_length = Histogram(lengths)
        self.generation_length = Histogram(lengths)
        self.max_generation = Histogram(lengths)
        self.params_n = Histogram(PARAMS_N)
        self.params_max_tokens = Histogram(lengths)
        self.request_preemptions = Histogram(PREEMPTIONS)
        self.computed_tokens = Histogram(lengths)
        self.transfers = TransferMeters() if transfers else None
        self.residency = ResidencyMeters() if residency else None

    def scale_history(self, factor: int) -> None:
        """Make the past so far stand for one ``factor`` times as long (an engine is rarely attached to at birth)."""
        for holder in (self, self.transfers, self.residency):
            if holder is not None:
                _scale(holder, factor)


def _scale(holder: object, factor: int) -> None:
    names = [f.name for f in fields(holder)] if hasattr(holder, "__dataclass_fields__") else list(vars(holder))  # type: ignore[arg-type]
    for name in names:
        value = getattr(holder, name)
        if isinstance(value, Histogram):
            value.scale(factor)
        elif isinstance(value, dict):
            setattr(holder, name, {key: count * factor for key, count in value.items()})
        elif isinstance(value, int):
            setattr(holder, name, value * factor)
