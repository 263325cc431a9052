"""One decode step of each arm at each length: the same logits from all, how long it took, what it copied."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import torch

from kvstore.bench.steps.caches import ByKernel, Cache, Concatenating, Dynamic, Gathered, Recompute, States, paged
from kvstore.bench.steps.model import SHAPES, Llama
from kvstore.errors import StoreError
from kvstore.kernels.language import interpreted

RECOMPUTE, CONCATENATE, GATHER, KERNEL = "recompute", "concatenate", "paged, gathered", "paged, kernel"
ARMS = (RECOMPUTE, CONCATENATE, GATHER, KERNEL)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""Of the largest logit: what the arms may differ by. Of the two 16-bit types some ten units in the last place."""

BURST_S = 0.05
MOST_BURST = 16
"""A step that takes microseconds is timed several times a round, as long as that takes 50 ms: the first call after
another arm measures what that one left in the caches."""


@dataclass(slots=True)
class Point:
    """One arm at one length: seconds of each timed step, bytes copied by one, and the largest difference from the
    logits of the first arm (relative to the largest of them)."""

    seconds: list[float] = field(default_factory=list)
    copied: int = 0
    difference: float = 0.0

    @property
    def median(self) -> float:
        return median(self.seconds)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: `lengths` count the new token; `rounds` turns of every arm, in a new order each."""

    size: str
    lengths: Sequence[int]
    rounds: int
    batch: int
    block_tokens: int
    dtype: str
    device: torch.device


@dataclass(frozen=True, slots=True)
class Step:
    """A forward pass of `given`, which follow `before` others; the caches hold `past` tokens before it."""

    model: Llama
    given: torch.Tensor
    before: int
    past: int

    @classmethod
    def of(cls, model: Llama, tokens: torch.Tensor, arm: str) -> Step:
        """Of the last of `tokens`; without a cache of all of them."""
        past = tokens.shape[1] - 1
        return cls(model, tokens, 0, past) if arm == RECOMPUTE else cls(model, tokens[:, past:], past, past)

    def run(self, cache: Cache) -> torch.Tensor:
        return self.model.forward(self.given, self.before, cache)


@dataclass(slots=True)
class Measured:
    """`points[arm][length]`; `skipped` says why an arm is not among them."""

    parameters: int
    token_bytes: int
    concatenated_by: str
    points: dict[str, dict[int, Point]]
    skipped: dict[str, str]


def measure(plan: Plan, *, kernel: bool | None = None) -> Measured:
    """Time the steps. Raises `StoreError` when two arms disagree.

    `kernel`: whether the kernel's arm runs; None: where a CUDA device does (an interpreter's time says nothing).
    """
    model = Llama(SHAPES[plan.size], device=plan.device, dtype=DTYPES[plan.dtype])
    draw = torch.Generator().manual_seed(1)
    longest = max(plan.lengths)
    tokens = torch.randint(model.shape.vocabulary, (plan.batch, longest), generator=draw).to(plan.device)
    reasons = {} if kernel or (kernel is None and _kernel_runs(plan.device)) else {KERNEL: _why_no_kernel(plan.device)}
    found = Measured(
        model.parameters,
        model.shape.token_bytes(DTYPES[plan.dtype].itemsize),
        _concatenated_by(),
        {arm: {} for arm in ARMS if arm not in reasons},
        reasons,
    )
    with torch.inference_mode():
        whole = Recompute(keep=True)
        model.forward(tokens, 0, whole)
        for length in plan.lengths:
            _at_length(plan, model, tokens[:, :length], whole.states, found)
    return found


def _at_length(plan: Plan, model: Llama, tokens: torch.Tensor, states: States, found: Measured) -> None:
    past = tokens.shape[1] - 1
    caches = {arm: _cache(arm, states, past, plan.block_tokens) for arm in found.points}
    points = {arm: Point() for arm in caches}
    steps = {arm: Step.of(model, tokens, arm) for arm in caches}
    expected: torch.Tensor | None = None
    for arm, cache in caches.items():
        cache.rewind(past)
        cache.copied = 0
        logits = steps[arm].run(cache).double()
        points[arm].copied = cache.copied
        expected = logits if expected is None else expected
        points[arm].difference = float((logits - expected).abs().max() / expected.abs().max())
        if not points[arm].difference <= TOLERANCE[plan.dtype]:
            off = f"off by {points[arm].difference:.1e} of the largest"
            raise StoreError(f"at {past + 1} tokens {arm!r} says other logits than {RECOMPUTE!r}: {off}")
        found.points[arm][past + 1] = points[arm]
    _time(plan, caches, steps, points)


def _time(plan: Plan, caches: dict[str, Cache], steps: dict[str, Step], points: dict[str, Point]) -> None:
    """Every arm once a round, in a new order; the first round only tells how long a burst may be."""
    order, shuffle = list(caches), random.Random(plan.lengths[0]).shuffle
    bursts = dict.fromkeys(caches, 1)
    for turn in range(plan.rounds + 1):
        shuffle(order)
        for arm in order:
            taken = [_timed(plan, caches[arm], steps[arm]) for _ in range(bursts[arm])]
            if turn == 0:
                bursts[arm] = max(1, min(MOST_BURST, int(BURST_S / taken[0])))
            else:
                points[arm].seconds += taken


def _timed(plan: Plan, cache: Cache, step: Step) -> float:
    cache.rewind(step.past)
    _wait(plan.device)
    began = time.perf_counter()
    step.run(cache)
    _wait(plan.device)
    return time.perf_counter() - began


def _cache(arm: str, states: States, past: int, block_tokens: int) -> Cache:
    if arm == RECOMPUTE:
        return Recompute()
    if arm == CONCATENATE:
        return Dynamic(states) if _has_transformers() else Concatenating(states)
    kv = paged(states, past, block_tokens)
    return Gathered(kv) if arm == GATHER else ByKernel(kv)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _kernel_runs(device: torch.device) -> bool:
    return device.type == "cuda" and _has("triton") and not interpreted()


def _why_no_kernel(device: torch.device) -> str:
    if device.type != "cuda":
        return "no CUDA device (the speed of Triton's interpreter says nothing)"
    return "triton is not installed" if not _has("triton") else "TRITON_INTERPRET is set"


def _has(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def _has_transformers() -> bool:
    return _has("transformers")


def _concatenated_by() -> str:
    if not _has_transformers():
        return "torch.cat"
    import transformers

    return f"transformers {transformers.__version__}'s DynamicCache"
