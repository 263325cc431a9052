"""One small module a command: ``add_arguments(parser)`` and ``run(args) -> exit code``.

Nothing heavy is imported here; a command imports what it needs inside ``run``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import NoReturn, Protocol, cast

from probes.records import dataclass

EXIT_OK = 0
EXIT_FINDING = 1
EXIT_USAGE = 2
EXIT_UNKNOWN = 3
EXIT_NOTHING = 4
EXIT_FAULT = 70
EXIT_OUTPUT = 74  # EX_IOERR of sysexits.h: the answer could not be written
EXIT_INTERRUPTED = 130


class CommandError(Exception):
    """Something that the user can mend: one line (what, where, what to do) and an exit code."""

    def __init__(self, message: str, code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.code = code


class Command(Protocol):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def _columns() -> int:
    """The terminal's width as ``shutil.get_terminal_size`` tells it: COLUMNS, else the terminal's own, else 80."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else 1).columns or 80
    except (OSError, ValueError):
        return 80


class Parser(argparse.ArgumentParser):
    """argparse with our manners: a wrong option is one line, not the whole usage."""

    def _print_message(self, message: str, file: object = None) -> None:
        """argparse drops what it cannot write."""
        from tui.commands.output import show

        show(message, end="")

    def _get_formatter(self) -> argparse.HelpFormatter:
        """argparse makes one for every argument, and without a width each asks ``shutil``, which loads three
        compressors."""
        return self.formatter_class(prog=self.prog, width=_columns() - 2)  # type: ignore[call-arg]

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message} (see `{self.prog} --help`)")


@dataclass(frozen=True, slots=True)
class Spec:
    """A command before it is loaded: its name, its module and one line for the list."""

    name: str
    module: str
    line: str

    def load(self) -> Command:
        return cast(Command, importlib.import_module(f"tui.commands.{self.module}"))

    def parser(self) -> Parser:
        prog = "kvtop" if self.name == "top" else f"kvtop {self.name}"
        formatter = argparse.RawDescriptionHelpFormatter
        return Parser(prog=prog, description=self.line, formatter_class=formatter, allow_abbrev=False)


COMMANDS: dict[str, Spec] = {
    spec.name: spec
    for spec in (
        Spec("top", "top", "The screens: attach to targets and watch"),
        Spec("once", "once", "One reading of every target"),
        Spec("diagnose", "diagnose", "Name the cause: collect, test every playbook, report"),
        Spec("query", "query", "PromQL over live or recorded series"),
        Spec("record", "record", "Record targets to one OpenMetrics file; --repair FILE mends a cut one"),
        Spec("playbook", "playbook", "List, show, lint and test the runbooks"),
        Spec("rules", "rules", "Prometheus rules (recording and alerting) on stdout"),
        Spec("doctor", "doctor", "What can be seen from here, what not, and why"),
        Spec("lab", "lab", "Provoke one fault in a real store, and see whether the diagnosis is right"),
        Spec("demo", "demo", "A store under a real trace, or a recorded incident"),
    )
}
