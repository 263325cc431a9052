"""How kvtop was asked to look and behave."""

from __future__ import annotations

from pathlib import Path

from probes.records import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """``interval_ms`` is the screen's tick; ``window_ms`` of None means four intervals, at least a minute.

    ``label`` names what is attached to, ``opening`` says what is done until there is data, ``theme`` a palette by name;
    ``play`` starts a recording at its beginning, playing at ``speed`` (one of `tui.cursor.SPEEDS`), else it opens
    paused at its end. ``playbooks`` is a directory of further playbooks.
    """

    interval_ms: int = 1000
    window_ms: int | None = None
    theme: str = "okabe-dark"
    ascii: bool = False
    label: str = ""
    opening: str = "connecting"
    play: bool = False
    speed: int = 1
    playbooks: Path | None = None
