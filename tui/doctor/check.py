"""One line of the doctor's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    OK = "ok"
    NOTE = "note"  # works, but something is left out
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Check:
    """``name`` is what was looked at, ``says`` what was found, ``advice`` what to do about it (empty: nothing)."""

    name: str
    state: State
    says: str
    advice: str = ""

    def as_dict(self) -> dict[str, str]:
        return {"name": self.name, "state": str(self.state), "says": self.says, "advice": self.advice}
