"""What is wrong with an expression, and where."""

from __future__ import annotations


class PromQLError(ValueError):
    """An expression that is invalid, unsupported, or fails while it runs.

    ``column`` counts from 1; None when the place is not known (evaluation errors). ``text`` is the expression.
    """

    def __init__(self, message: str, column: int | None = None, text: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.column = column
        self.text = text

    def __str__(self) -> str:
        return self.message if self.column is None else f"column {self.column}: {self.message}"

    def render(self, *, caret: bool = False) -> str:
        """One line; with ``caret`` the expression and a caret under the place follow."""
        if not caret or self.column is None or self.text is None:
            return str(self)
        before = self.text[: self.column - 1]
        start = before.rfind("\n") + 1
        end = self.text.find("\n", start)
        line = self.text[start : end if end >= 0 else len(self.text)]
        return f"{self}\n  {line.expandtabs(1)}\n  {' ' * (self.column - 1 - start)}^"
