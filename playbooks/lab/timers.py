"""What will happen at a given time: arrivals, aborts, finished transfers."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[float], None]


class Timers:
    """Actions in order of time, first come first served at the same time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Action]] = []
        self._serial = 0

    def at(self, time: float, action: Action) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (time, self._serial, action))

    @property
    def next_time(self) -> float:
        """Time of the next action, or infinity."""
        return self._heap[0][0] if self._heap else float("inf")

    def fire(self, now: float) -> None:
        """Run everything that is due."""
        while self._heap and self._heap[0][0] <= now:
            time, _serial, action = heapq.heappop(self._heap)
            action(time)
