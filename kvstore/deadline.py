"""How long an operation may still take."""

from __future__ import annotations

import time
from numbers import Real
from typing import Any

from kvstore.errors import BadRequest


class Deadline:
    """A moment of CLOCK_MONOTONIC; raises `BadRequest` for a time that is not positive."""

    __slots__ = ("_end", "allowed_ms")

    def __init__(self, allowed_ms: float) -> None:
        said: Any = allowed_ms
        if not isinstance(said, Real) or not 0 < allowed_ms <= 24 * 3_600_000:
            raise BadRequest(f"a deadline is more than 0 ms and at most a day, not {allowed_ms!r:.40}")
        self.allowed_ms = allowed_ms
        self._end = time.monotonic() + allowed_ms / 1000

    @property
    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())

    @property
    def left_ms(self) -> int:
        """Milliseconds left, at least one: for a message's envelope."""
        return max(1, int(self.left_s * 1000))

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self._end
