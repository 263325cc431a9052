"""A decode loop with the bitmap and the block tables on the device, and with the two textbook mistakes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gpu.check import Check
from gpu.kineto import Activity
from gpu.model import Model, Shape
from gpu.scenes import Draw
from gpu.trace import profiled
from kvstore.device import DevicePool
from kvstore.layout import Layout

ARMS: dict[str, tuple[Literal["packed", "naive"], Literal["batched", "upload"]]] = {
    "resident": ("packed", "batched"),
    "bitmap-sync": ("naive", "batched"),
    "block-table-upload": ("packed", "upload"),
    "both faults": ("naive", "upload"),
}
GRAPH = "resident, layers in a graph"
_KEPT = ("resident", "both faults", GRAPH)
"""Arms whose traces are kept."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`context` tokens (and up to 15) of every sequence at first; `steps` timed in each of `rounds` turns of an arm,
    then so many `profiled`."""

    shape: Shape
    batch: int
    context: int
    steps: int
    rounds: int
    profiled: int

    @property
    def columns(self) -> int:
        """Blocks of a row that has room for all that is generated."""
        return -(-(self.context + 16 + (self.rounds + 1) * self.steps + self.profiled + 2) // 16)


class Loop:
    """One arm: a pool, a model that is everybody's, and sequences whose lengths differ by a token each: in every step
    some of them need a block."""

    def __init__(self, check: Check, plan: Plan, model: Model, arm: str, seed: int) -> None:
        bitmap, table = ARMS.get(arm, ARMS["resident"])
        shape = plan.shape
        layout = Layout(
            "loop", layers=shape.layers, heads=shape.kv_heads, head_dim=shape.head_dim,
            dtype=str(shape.dtype).removeprefix("torch."),
        )  # fmt: skip
        blocks = plan.batch * plan.columns
        self.pool = DevicePool(
            layout, blocks, rows=plan.batch, columns=plan.columns, device=check.device, bitmap=bitmap, table=table
        )
        self._model, self._plan = model, plan
        self.rows = [self.pool.open() for _ in range(plan.batch)]
        draw = Draw(seed, check.device)
        lengths = [plan.context + row % 16 for row in self.rows]
        before = self.pool.extend(self.rows, lengths)
        for layer in range(shape.layers):
            key, value = (
                draw.normal(sum(lengths), shape.kv_heads, shape.head_dim, dtype=shape.dtype) for _ in range(2)
            )
            self.pool.append(layer, key, value, before)
        self.hidden = draw.normal(plan.batch, shape.hidden, dtype=shape.dtype)
        self._slots = torch.zeros(plan.batch, dtype=torch.int64, device=check.device)
        self._before = self._crossings()
        self._graph: torch.cuda.CUDAGraph | None = None
        if arm == GRAPH and not check.cpu:
            self._capture()

    def step(self) -> Tensor:
        """One token of every sequence; the hidden states, which go into the next step."""
        step = self.pool.extend(self.rows, [1] * len(self.rows))
        if self._graph is None:
            self.hidden = self._model.forward(self.hidden, self.pool, step.slots)
        else:
            self._slots.copy_(step.slots)
            self._graph.replay()
        return self.hidden

    def crossed(self) -> tuple[float, float]:
        """Reads of the device and uploads to it, a step."""
        steps = max(1, self.pool.tokens(self.rows[0]) - self._plan.context)
        reads, uploads = (now - before for now, before in zip(self._crossings(), self._before, strict=True))
        return reads / steps, uploads / steps

    def _crossings(self) -> tuple[int, int]:
        meters = self.pool.crossing.meters
        return sum(meters.device_reads.values()), sum(meters.device_uploads.values())

    def _capture(self) -> None:
        """The layers, with their slots and hidden states at fixed places; what is captured is not run."""
        # -1: the tokens of the warm-up go nowhere.
        self._slots.fill_(-1)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        kept = self.hidden.clone()
        with torch.cuda.stream(stream):
            self._model.forward(self.hidden, self.pool, self._slots)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.hidden.copy_(self._model.forward(self.hidden, self.pool, self._slots))
        self.hidden.copy_(kept)


def run(check: Check) -> None:
    if check.cpu:
        plan = Plan(Shape(2, 32, 4, 2, 8, 64, torch.float32), batch=2, context=15, steps=1, rounds=1, profiled=1)
    else:
        shape = Shape(8, 4096, 32, 8, 128, 14336, torch.bfloat16)
        plan = Plan(shape, batch=64, context=1024, steps=24, rounds=3, profiled=3)
    model = Model(plan.shape, Draw(check.seed, check.device))
    arms = [*ARMS] if check.cpu else [*ARMS, GRAPH]
    with torch.inference_mode():
        loops = {arm: Loop(check, plan, model, arm, check.seed) for arm in arms}
        agree(check, loops)
        seconds = timed(check, plan, loops)
        tell(check, plan, loops, seconds)


def agree(check: Check, loops: dict[str, Loop]) -> None:
    """One step of each: blocks lie elsewhere, the numbers are the same."""
    states = {arm: loop.step().double().clone() for arm, loop in loops.items()}
    first = states["resident"]
    worst = max(float((state - first).abs().nan_to_num(nan=float("inf")).max()) for state in states.values())
    limit = 1e-4 if check.cpu else 0.06  # of bfloat16 states near 1: some units in the last place (policy)
    if worst <= limit:
        check.right("all arms compute the same", worst, "", f"{len(loops)} arms, one step")
    else:
        check.wrong_number("all arms compute the same", f"off by {worst:.2g} (limit {limit:g})", worst)


def timed(check: Check, plan: Plan, loops: dict[str, Loop]) -> dict[str, float]:
    """Seconds a step: the median of the turns."""
    taken: dict[str, list[float]] = {arm: [] for arm in loops}
    for turn in range(plan.rounds + 1):
        if turn > 1 and check.left() < 12:
            break
        for arm, loop in loops.items():
            wait(check)
            began = time.perf_counter()
            for _ in range(plan.steps):
                loop.step()
            wait(check)
            if turn:
                taken[arm].append((time.perf_counter() - began) / plan.steps)
    return {arm: sorted(each)[len(each) // 2] for arm, each in taken.items()}


def tell(check: Check, plan: Plan, loops: dict[str, Loop], seconds: dict[str, float]) -> None:
    """Tokens a second, the GPU's idle share (its work in a profiled run over the time of one without a profiler), and
    what crossed between host and device."""
    for arm, loop in loops.items():
        reads, uploads = loop.crossed()
        crossed = f"{reads:.1f} reads and {uploads:.1f} uploads a step"
        rate = plan.batch / seconds[arm]
        check.measured(f"{arm}", rate, "tokens/s", f"{seconds[arm] * 1e3:.2f} ms a step, {crossed}")
        if loop.pool.free_blocks() != loop.pool.free or loop.pool.faults():
            check.wrong_number(arm, f"{loop.pool.free_blocks()} blocks free, {loop.pool.free} counted")
        activity = profiled(check, arm, loop.step, plan.profiled, kept=arm in _KEPT)
        if activity is not None:
            told(check, arm, activity, seconds[arm])
    for arm in loops:
        if arm != "resident":
            check.measured(f"{arm} against resident", seconds["resident"] / seconds[arm], "times as fast")


def told(check: Check, arm: str, activity: Activity, seconds: float) -> None:
    busy = activity.busy_s / activity.steps
    check.measured(
        f"{arm}, GPU idle", max(0.0, 1 - busy / seconds), "of the step",
        f"{busy * 1e3:.2f} ms of work; {activity.idle:.0%} idle under the profiler",
    )  # fmt: skip


def wait(check: Check) -> None:
    if not check.cpu:
        torch.cuda.synchronize()
