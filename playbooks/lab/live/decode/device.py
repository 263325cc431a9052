"""Where a loop's model runs: a GPU, or what stands for one.

The stand-in is a thread that does what it is given, in order, as a stream of a GPU does; the loop goes on meanwhile. As
on a GPU, a copy from ordinary memory and a read wait until that queue is empty, and a batched upload does not (CUDA's
"API synchronization behavior": for pageable memory, a stream sync is performed before the copy is initiated). So what a
crossing costs here is the work that really is under way, and no number that somebody chose.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kvstore.device.crossing import Crossing
from kvstore.meters import Meters

Wait = Callable[[], object]
"""Returns once the work is done, and raises what it raised."""


@dataclass(frozen=True, slots=True)
class Size:
    """A model that keeps the device busier than the loop's own thread, and how much each batch asks of it.

    `rows`: sequences for each one of the scenario; `prompt` tokens each has at first (and up to a block more), `steps`
    tokens it gets.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    dtype: str
    rows: int
    prompt: int
    steps: int


class Device(Protocol):
    """What a loop needs of it."""

    name: str
    size: Size

    def run(self, work: Callable[[], None]) -> Wait:
        """Queue `work` behind all that was queued before."""

    def crossing(self, meters: Meters) -> Crossing: ...


class Gpu:
    """A GPU, by CUDA's current stream."""

    size = Size(4, 2048, 16, 4, 128, 4096, "bfloat16", rows=2, prompt=2048, steps=512)

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, work: Callable[[], None]) -> Wait:
        work()
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(self.name))
        return lambda: done.synchronize()

    def crossing(self, meters: Meters) -> Crossing:
        return Crossing(self.name, meters)


class HostQueue:
    """The stand-in: memory of the host, and a thread with a queue."""

    name = "cpu"
    size = Size(1, 64, 2, 1, 32, 128, "float32", rows=1, prompt=48, steps=24)

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="device")
        self._latest: Future[None] | None = None

    def run(self, work: Callable[[], None]) -> Wait:
        self._latest = self._thread.submit(work)
        return self._latest.result

    def drain(self) -> None:
        """Wait until nothing is queued."""
        if self._latest is not None:
            self._latest.result()

    def crossing(self, meters: Meters) -> Crossing:
        return QueueCrossing(self, meters)


class QueueCrossing(Crossing):
    """Counts and times what crosses to a `HostQueue`, and waits for it where a GPU would be waited for."""

    def __init__(self, queue: HostQueue, meters: Meters) -> None:
        super().__init__(queue.name, meters)
        self._queue = queue

    def read(self, site: str, tensor: Tensor) -> Tensor:
        begun = time.perf_counter()
        self._queue.drain()
        host = tensor.clone()
        self.meters.synced(site, time.perf_counter() - begun)
        return host

    def send_alone(self, site: str, values: Sequence[int]) -> Tensor:
        begun = time.perf_counter()
        self._queue.drain()
        there = torch.tensor(values, dtype=torch.int32)
        self.meters.uploaded(site, 4 * len(values), time.perf_counter() - begun)
        return there


def device_for(number: int) -> Device:
    """The GPU of the `number`-th loop, in turn; without one, the stand-in."""
    if torch.cuda.is_available():
        return Gpu(f"cuda:{number % torch.cuda.device_count()}")
    return HostQueue()
