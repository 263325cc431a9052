"""Where in time the screen stands: live, paused, or playing at a speed. Pure: no clock of its own."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from probes.records import dataclass

SPEEDS = (1, 2, 5, 10, 30, 60, 300)


class Mode(StrEnum):
    LIVE = "live"
    PLAYING = "playing"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Cursor:
    """A moment within the data's span ``[start_ms, end_ms]``; ``recorded`` data has no live end.

    Live, the moment is the span's end. Every change gives a new cursor; a moment outside the span is moved into it.
    """

    mode: Mode
    at_ms: int
    start_ms: int
    end_ms: int
    speed: int = 1
    recorded: bool = False

    @property
    def at_end(self) -> bool:
        return self.at_ms >= self.end_ms

    def spanning(self, start_ms: int, end_ms: int) -> Cursor:
        """The same cursor over a span that has grown (or lost its oldest part)."""
        at = end_ms if self.mode is Mode.LIVE else min(max(self.at_ms, start_ms), end_ms)
        return replace(self, start_ms=start_ms, end_ms=end_ms, at_ms=at)

    def advanced(self, elapsed_ms: int) -> Cursor:
        """After this much time on the wall clock."""
        if self.mode is not Mode.PLAYING:
            return self
        at = self.at_ms + elapsed_ms * self.speed
        if at < self.end_ms:
            return replace(self, at_ms=at)
        return replace(self, at_ms=self.end_ms, mode=Mode.PAUSED if self.recorded else Mode.LIVE)

    def toggled(self) -> Cursor:
        """Pause, or go on: from the end of a recording, from its start."""
        if self.mode is not Mode.PAUSED:
            return replace(self, mode=Mode.PAUSED)
        if self.at_end:
            return replace(self, at_ms=self.start_ms, mode=Mode.PLAYING) if self.recorded else self.live()
        return replace(self, mode=Mode.PLAYING)

    def stepped(self, by_ms: int) -> Cursor:
        """Back or forth by this much, and paused there."""
        return self.sought(self.at_ms + by_ms)

    def sought(self, at_ms: int) -> Cursor:
        return replace(self, at_ms=min(max(at_ms, self.start_ms), self.end_ms), mode=Mode.PAUSED)

    def home(self) -> Cursor:
        return self.sought(self.start_ms)

    def live(self) -> Cursor:
        """To the newest data: live again, or a recording's end."""
        return replace(self, at_ms=self.end_ms, mode=Mode.PAUSED if self.recorded else Mode.LIVE)

    def faster(self, steps: int) -> Cursor:
        """The next speed up (``steps`` 1) or down (-1)."""
        index = min(max(SPEEDS.index(self.speed) + steps, 0), len(SPEEDS) - 1)
        return replace(self, speed=SPEEDS[index])
