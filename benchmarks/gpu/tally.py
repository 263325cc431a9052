"""Cases of one check, counted, and told as one row: the worst of them, and the first that was wrong."""

from __future__ import annotations

from gpu.check import Check


class Tally:
    """`name` of the row; `unit` of the figures that `case` is given (the worst is told)."""

    def __init__(self, check: Check, name: str, unit: str = "") -> None:
        self._check = check
        self._name = name
        self._unit = unit
        self._cases = 0
        self._worst: float | None = None
        self._wrong: list[str] = []
        self._left_out = 0

    def case(self, right: bool, what: str, figure: float | None = None) -> None:
        """One case; `what` names it, for when it is wrong."""
        self._cases += 1
        if figure is not None and (self._worst is None or not figure <= self._worst):
            self._worst = figure
        if not right:
            self._wrong.append(what)

    def leave_out(self, cases: int = 1) -> None:
        """So many cases had no time."""
        self._left_out += cases

    def tell(self) -> None:
        """The row: right, WRONG, or not finished where no case had time."""
        note = f"{self._cases} cases" + (f", {self._left_out} left out for want of time" if self._left_out else "")
        if self._wrong:
            note = f"{len(self._wrong)} of {note} wrong, the first: {self._wrong[0]}"
            self._check.wrong_number(self._name, note, self._worst, self._unit)
        elif self._cases:
            self._check.right(self._name, self._worst, self._unit, note)
        else:
            self._check.unfinished(self._name)
