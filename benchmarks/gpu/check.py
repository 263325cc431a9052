"""What every section is given: where it runs, how long, and where it says what it found."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu.rows import FAILED, MEASURED, MET, MISSED, RIGHT, SKIPPED, UNFINISHED, WRONG, Row


@dataclass(slots=True)
class Check:
    """One section's run. `cpu`: tiny shapes under Triton's interpreter; `wrong`: the kernel that is to be broken.

    `device` is a `torch.device`'s name. `until` (monotonic seconds) is when the section should be done: what it has
    not begun by then it leaves out, by name.
    """

    section: str
    cpu: bool
    seed: int
    until: float
    say: Callable[[Row], None]
    wrong: str = ""
    out: Path | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> str:
        return "cpu" if self.cpu else "cuda"

    def left(self) -> float:
        """Seconds until the section should be done."""
        return self.until - time.monotonic()

    def right(self, name: str, worst: float | None, unit: str = "", note: str = "") -> None:
        self.say(Row(self.section, name, RIGHT, worst, unit, note=note))

    def wrong_number(self, name: str, note: str, value: float | None = None, unit: str = "") -> None:
        self.say(Row(self.section, name, WRONG, value, unit, note=note))

    def measured(self, name: str, value: float, unit: str, note: str = "") -> None:
        self.say(Row(self.section, name, MEASURED, value, unit, note=note))

    def aimed(self, name: str, value: float, unit: str, least: float, note: str = "") -> None:
        """A figure that should be `least` or more. Where a CPU stands in for a GPU the aim is not judged."""
        state = MEASURED if self.cpu else MET if value >= least else MISSED
        self.say(Row(self.section, name, state, value, unit, f">= {least:g}", note))

    def within(self, name: str, value: float, unit: str, limits: tuple[float, float], note: str = "") -> None:
        """A figure that should lie between two."""
        state = MET if limits[0] <= value <= limits[1] else MISSED
        self.say(Row(self.section, name, state, value, unit, f"{limits[0]:g} … {limits[1]:g}", note))

    def skipped(self, name: str, why: str) -> None:
        self.say(Row(self.section, name, SKIPPED, note=why))

    def unfinished(self, name: str) -> None:
        """What should have been compared, and had no time: nobody knows what it would have shown."""
        self.say(Row(self.section, name, UNFINISHED, note="no time was left"))

    def failed(self, name: str, why: str) -> None:
        self.say(Row(self.section, name, FAILED, note=why))
