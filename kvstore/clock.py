"""Lamport's logical clock (Lamport 1978): merged on every message, so that order follows cause across shards."""

from __future__ import annotations

from kvstore.errors import BadRequest

MAX_CLOCK = 1 << 62
"""No clock gets there: at a million events a second it takes 146,000 years. Beyond it nothing is believed, since a
clock that leaves its 64 bits ends its process (policy)."""
MAX_LEAP = 1 << 48
"""How far ahead of a shard a message may be: nine years at a million events a second (policy)."""


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
        """A message stamped `seen` arrived; the time of that arrival. Raises `BadRequest` for what no clock says."""
        self._now = max(self._now, require_clock(seen)) + 1
        return self._now

    def merge_from_anybody(self, seen: int) -> int:
        """As `merge`, for what many depend on: nobody may bring it near its end by a single message."""
        if seen > self._now + MAX_LEAP:
            raise BadRequest(f"a clock of {seen} is too far ahead of this one, which is at {self._now}")
        return self.merge(seen)


def require_clock(seen: int) -> int:
    """`seen`, if a clock may say so; else `BadRequest`."""
    if not 0 <= seen <= MAX_CLOCK:
        raise BadRequest(f"a clock of {seen}: no store gets beyond 2**62")
    return seen
