"""Peers measured side by side: a round times each arm once, in a new order, so that drift meets all of them alike."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Arm = Callable[[int], Awaitable[object]]
"""One measurement; the argument is the round's number, from which an arm takes its inputs."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of each round, sorted."""

    seconds: tuple[float, ...]

    def quantile(self, q: float) -> float:
        """Nearest rank."""
        return self.seconds[min(len(self.seconds) - 1, int(q * len(self.seconds)))]

    @property
    def median(self) -> float:
        return self.quantile(0.5)


async def interleave(
    arms: dict[str, Arm], rounds: int, *, burst: int = 1, warm_up: int = 2, seed: int = 0
) -> dict[str, Times]:
    """`rounds` turns of each arm after `warm_up` that do not count; `burst` timings a turn, one after the other.

    A burst is for what takes microseconds: a first call after another arm measures what that one left in the caches.
    """
    order = list(arms)
    shuffle = random.Random(seed).shuffle
    taken: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds + warm_up):
        shuffle(order)
        for name in order:
            for step in range(number * burst, (number + 1) * burst):
                began = time.perf_counter()
                await arms[name](step)
                elapsed = time.perf_counter() - began
                if number >= warm_up:
                    taken[name].append(elapsed)
    return {name: Times(tuple(sorted(seconds))) for name, seconds in taken.items()}
