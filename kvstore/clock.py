"""Lamport's logical clock (Lamport 1978): merged on every message, so that order follows cause across shards."""

from __future__ import annotations


class LamportClock:
    """A counter that never runs behind what its process has seen. Not for several threads."""

    __slots__ = ("_now",)

    def __init__(self, start: int = 0) -> None:
        self._now = start

    @property
    def now(self) -> int:
        return self._now

    def tick(self) -> int:
        """A new event of this process; its time."""
        self._now += 1
        return self._now

    def merge(self, seen: int) -> int:
        """A message stamped `seen` arrived; the time of that arrival."""
        self._now = max(self._now, seen) + 1
        return self._now
