"""What a section says: rows of figures and verdicts, which travel from the worker to the command as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

RIGHT, WRONG, MET, MISSED, MEASURED, SKIPPED, FAILED, UNFINISHED = (
    "right", "WRONG", "met", "MISSED", "measured", "skipped", "FAILED", "NOT FINISHED",
)  # fmt: skip
STATES = (RIGHT, WRONG, MET, MISSED, MEASURED, SKIPPED, FAILED, UNFINISHED)
BAD = (WRONG, FAILED, UNFINISHED)
"""What makes the command end with 1. A missed aim does not; what was ended or not begun for want of time does, as
nobody knows what it would have found."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `value` in `unit`, None where there is no number; `aim` as a person reads it."""

    section: str
    name: str
    state: str
    value: float | None = None
    unit: str = ""
    aim: str = ""
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Row:
        """The row that `as_dict` told. Raises `ValueError` for a state that there is not."""
        row = cls(**values)
        if row.state not in STATES:
            raise ValueError(f"no state {row.state!r}; there are {', '.join(STATES)}")
        return row


def one_line(error: BaseException) -> str:
    """An exception in one line for a person."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
