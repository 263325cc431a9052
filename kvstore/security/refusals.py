"""Who was not let in: counted by reason, and told in the log at a bounded rate."""

from __future__ import annotations

import logging
import threading
import time

EVERY_S = 10.0
"""One line a cause in so many seconds: a thousand refused clients must not fill a disk (policy)."""
_MOST_LINES = 64
_log = logging.getLogger("kvstore.security")


class Refusals:
    """May be told from any thread."""

    def __init__(self, *, every_s: float = EVERY_S) -> None:
        self.counts: dict[str, int] = {}
        self._every_s = every_s
        self._told: dict[str, float] = {}
        self._held: dict[str, int] = {}
        self._lock = threading.Lock()

    def note(self, reason: str, who: str, why: str) -> None:
        """`reason` is one of a few words (it becomes a label), `why` the line's text; neither holds a secret."""
        now = time.monotonic()
        with self._lock:
            self.counts[reason] = self.counts.get(reason, 0) + 1
            last = self._told.get(why)
            if last is not None and now - last < self._every_s:
                self._held[why] = self._held.get(why, 0) + 1
                return
            if why not in self._told and len(self._told) >= _MOST_LINES:
                self._told = {line: at for line, at in self._told.items() if now - at < self._every_s}
                self._held = {line: held for line, held in self._held.items() if line in self._told}
                if len(self._told) >= _MOST_LINES:
                    return
            self._told[why] = now
            held = self._held.pop(why, 0)
        more = f" ({held} more like it since the last line)" if held else ""
        _log.warning("refused %s: %s%s", who, " ".join(why.split()), more)
