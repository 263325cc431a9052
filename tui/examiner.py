"""The diagnosis beside the screen: how often it may run, over which window, and what it said."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playbooks.verdict import Diagnosis, SourceLine

if TYPE_CHECKING:
    from playbooks.playbook import Playbook

EVERY_S = 10.0
LEAST_SAMPLES = 5
LOOK_BACK_MS = 900_000
STEPS = 24  # a report takes more; a screen asks again in seconds
_SHARE = 0.01  # of one core's time, for what the screen repeats unasked
LONGEST_S = 30.0


class Examiner:
    """Runs `playbooks.engine.diagnose` when it is due: every ten seconds, less often where that costs too much.

    What it costs is processor time of this thread, on average over the runs; reading the playbooks is no part of it.
    """

    def __init__(self, view: Any, interval_ms: int, folder: Path | None = None) -> None:
        self._view, self._interval_ms, self._folder = view, interval_ms, folder
        self._playbooks: Sequence[Playbook] | None = None
        self._at_ms: int | None = None
        self._next = 0.0
        self._cost: float | None = None
        self.diagnosis: Diagnosis | None = None
        self.trouble = ""

    @property
    def pages(self) -> dict[str, str]:
        """Cause to the text of its runbook page."""
        return {playbook.id: playbook.body for playbook in self._playbooks or ()}

    def verdict_at(self, at_ms: int, *, moving: bool) -> Diagnosis | None:
        """The verdict that may be shown for a moment: made for it, or, while time moves on, for one before it."""
        found = self.diagnosis
        if found is None or self._at_ms is None:
            return None
        return found if self._at_ms == at_ms or (moving and self._at_ms < at_ms) else None

    def forget(self) -> None:
        """The cursor jumped: what was said of another moment is no verdict on this one, and the next is due at once."""
        self.diagnosis, self._at_ms, self._next = None, None, 0.0

    def due(self, start_ms: int, at_ms: int, *, resting: bool) -> bool:
        """Whether there is something new to examine; a cursor at rest need not wait its turn."""
        enough = at_ms - start_ms >= LEAST_SAMPLES * self._interval_ms
        if not enough or at_ms == self._at_ms:
            return False
        return resting or time.monotonic() >= self._next

    def examine(self, start_ms: int, at_ms: int, sources: Sequence[SourceLine]) -> None:
        """Diagnose the data from ``start_ms`` (at most a quarter of an hour back) to ``at_ms``."""
        from playbooks.engine import Case, diagnose
        from playbooks.grid import Grid
        from playbooks.playbook import load_playbooks

        if self._playbooks is None:
            self._playbooks = load_playbooks([self._folder] if self._folder else ())
        began = time.thread_time()
        grid = Grid(max(start_ms, at_ms - LOOK_BACK_MS), at_ms, self._interval_ms, max_steps=STEPS)
        try:
            self.diagnosis = diagnose(self._view, Case(grid, tuple(sources)), self._playbooks, self._view.rules)
            self.trouble = ""
        except ValueError as error:  # a user's playbook with a broken expression must not take the screen away
            self.diagnosis, self.trouble = None, f"the diagnosis failed: {error}"
        self._at_ms = at_ms
        spent = time.thread_time() - began
        if self._cost is None:  # the first run parses every expression: no measure for the later ones
            self._cost = 0.0
        else:
            self._cost = (self._cost + spent) / 2 if self._cost else spent
        self._next = time.monotonic() + min(max(EVERY_S, self._cost / _SHARE), LONGEST_S)
