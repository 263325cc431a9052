"""A known load on the GPU, kept up by a thread, and the bytes that it has moved."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class Load:
    """`moved`: when how many bytes had been moved, from the first round on (monotonic seconds, bytes)."""

    moved: list[tuple[float, float]] = field(default_factory=list)
    error: str = ""

    def rate(self, since: float, until: float) -> float:
        """Bytes a second between two moments, from the rounds that ended nearest to them; 0 where none did."""
        within = [point for point in self.moved if since <= point[0] <= until]
        if len(within) < 2:
            return 0.0
        (first, start), (last, end) = within[0], within[-1]
        return (end - start) / (last - first)


@contextmanager
def copying(source: Tensor, target: Tensor, bytes_a_copy: float, copies: int = 20) -> Iterator[Load]:
    """Copy `source` to `target` again and again meanwhile, `copies` a round; a round is counted when it is done."""
    load, ended = Load(), threading.Event()

    def work() -> None:
        try:
            stream = torch.cuda.Stream()
            total = 0.0
            with torch.cuda.stream(stream):
                while not ended.is_set():
                    for _ in range(copies):
                        target.copy_(source, non_blocking=True)
                    stream.synchronize()
                    total += copies * bytes_a_copy
                    load.moved.append((time.monotonic(), total))
        except RuntimeError as error:
            load.error = str(error).splitlines()[0]

    thread = threading.Thread(target=work, name="load", daemon=True)
    thread.start()
    try:
        yield load
    finally:
        ended.set()
        thread.join(10.0)
