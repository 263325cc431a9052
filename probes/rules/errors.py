"""What is wrong with a rule or a canonical name, in one line."""

from __future__ import annotations

from probes.promql.errors import PromQLError


class RuleError(ValueError):
    """A rule file, or an expression over canonical names, that cannot be used.

    ``str(error)`` is one line: where (file and line, if a file is at fault), what, and what to do.
    """

    def __init__(self, message: str, *, file: str = "", line: int = 0, rule: str = "") -> None:
        place = f"{file}:{line}: " if line else f"{file}: " if file else ""
        super().__init__(f"{place}{rule + ': ' if rule else ''}{message}")
        self.file = file
        self.line = line
        self.rule = rule


class ExpansionError(RuleError, PromQLError):
    """An expression over canonical names that has no inlined form; ``name`` is the canonical name at fault.

    It is a ``PromQLError`` too: to whoever asked, the expression is wrong. ``column`` is None; the name's place in
    the text is the column.
    """

    def __init__(self, message: str, name: str = "") -> None:
        PromQLError.__init__(self, message)
        self.file = self.rule = ""
        self.line = 0
        self.name = name

    __str__ = PromQLError.__str__
