"""Seconds of a call on the device: arms of one question timed in turn, caches cold, medians."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles

import torch

from gpu.check import Check

Arm = Callable[[], object]
_AHEAD_CYCLES = 1_200_000
"""The device waits so long before each timed call (0.6 ms at 2 GHz), that the host has launched all of it by then."""
_LEAST_FLUSH = 128 << 20
_GRAPH_CALLS = 20


@dataclass(frozen=True, slots=True)
class Times:
    """Of one arm, s."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range over the median."""
        if len(self.seconds) < 4:
            return max(self.seconds) / min(self.seconds) - 1
        low, _, high = quantiles(self.seconds, n=4)
        return (high - low) / self.median


class Clock:
    """Times single calls: with CUDA events on a GPU, else by the wall."""

    def __init__(self, check: Check) -> None:
        self._cpu = check.cpu
        if not check.cpu:
            l2 = int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0))
            self._flush = torch.empty(max(_LEAST_FLUSH, 4 * l2), dtype=torch.uint8, device="cuda")

    def once(self, arm: Arm) -> float:
        """One call whose inputs are in no cache, s. On a GPU its launch is not counted: it is done before."""
        if self._cpu:
            began = time.perf_counter()
            arm()
            return time.perf_counter() - began
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        torch.cuda._sleep(_AHEAD_CYCLES)
        start.record()
        arm()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def together(self, arm: Arm, calls: int) -> float:
        """Seconds a call, of `calls` one after another as a program makes them: the host's time where that is more."""
        self.wait()
        began = time.perf_counter()
        for _ in range(calls):
            arm()
        self.wait()
        return (time.perf_counter() - began) / calls

    def captured(self, arm: Arm, replays: int) -> float:
        """Seconds a call within a CUDA graph of some of them: what is left without a host. Only on a GPU."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            arm()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(_GRAPH_CALLS):
                arm()
        graph.replay()
        taken = []
        for _ in range(replays):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            taken.append(start.elapsed_time(end) / 1e3 / _GRAPH_CALLS)
        return median(taken)

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        if not self._cpu:
            torch.cuda.synchronize()


def interleaved(check: Check, clock: Clock, arms: Mapping[str, Arm], rounds: int) -> dict[str, Times]:
    """`rounds` turns of every arm in a new order each, after one that does not count (it compiles); fewer where the
    section's time is over, but never less than one."""
    order = list(arms)
    shuffle = random.Random(check.seed).shuffle
    taken: dict[str, list[float]] = {name: [] for name in order}
    for name in order:
        clock.once(arms[name])
    for turn in range(rounds):
        if turn and check.left() <= 0:
            break
        shuffle(order)
        for name in order:
            taken[name].append(clock.once(arms[name]))
    return {name: Times(tuple(seconds)) for name, seconds in taken.items()}
