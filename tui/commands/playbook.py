"""``kvtop playbook list|show|lint|test``: the runbooks themselves."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from playbooks.printable import printable
from tui.commands import EXIT_OK, EXIT_USAGE, CommandError
from tui.commands.errors import plain_errors
from tui.commands.output import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "show", "lint", "test"), metavar="list|show|lint|test")
    parser.add_argument(
        "causes", nargs="*", metavar="CAUSE", help="show and test: these causes; lint: files or folders"
    )
    parser.add_argument(
        "--playbooks", metavar="DIR", type=Path, action="append", default=[], help="your own playbooks, too"
    )
    parser.add_argument("--json", action="store_true", help="list and show: for machines")
    parser.epilog = (
        "list   every cause with its title\n"
        "show   a runbook as the on-call engineer reads it\n"
        "lint   check playbooks: file, line and what to do; exit 2 if any is refused\n"
        "test   play the fixtures of playbooks in the simulator (hit, look-alike, missing signal; minutes for all);\n"
        "       exit 2 if any fails"
    )


def run(args: argparse.Namespace) -> int:
    with plain_errors():
        return {"list": _list, "show": _show, "lint": _lint, "test": _test}[args.action](args)


def _list(args: argparse.Namespace) -> int:
    from playbooks.playbook import load_playbooks
    from tui.commands.table import table

    found = sorted(load_playbooks(args.playbooks), key=lambda one: one.id)
    if args.json:
        from tui.commands.output import print_json

        print_json(
            [{"id": one.id, "title": one.title, "severity": one.severity, "summary": one.summary} for one in found]
        )
    else:
        show(table(("CAUSE", "SEVERITY", "TITLE"), [(one.id, one.severity, one.title) for one in found]))
    return EXIT_OK


def _show(args: argparse.Namespace) -> int:
    from playbooks.playbook import load_playbooks

    if not args.causes:
        raise CommandError("playbook show: which cause? `kvtop playbook list` lists them")
    known = {one.id: one for one in load_playbooks(args.playbooks)}
    _known(args.causes, known, "show")
    if args.json:
        from dataclasses import asdict

        from tui.commands.output import print_json

        print_json([asdict(known[cause]) for cause in args.causes])
    else:
        from tui.commands.runbook import runbook

        show("\n\n".join(runbook(known[cause]) for cause in args.causes))
    return EXIT_OK


def _lint(args: argparse.Namespace) -> int:
    from playbooks.lint import lint

    problems = lint([*map(Path, args.causes), *args.playbooks])
    for problem in problems:
        print(printable(str(problem)), file=sys.stderr)
    if problems:
        return EXIT_USAGE
    show("every playbook passes")
    return EXIT_OK


def _test(args: argparse.Namespace) -> int:
    from playbooks.playbook import load_playbooks
    from playbooks.rehearse import rehearse

    playbooks = load_playbooks(args.playbooks)
    _known(args.causes, {one.id for one in playbooks}, "test")
    failed = played = 0
    for rehearsal in rehearse(playbooks, args.causes):
        show(str(rehearsal))
        played += 1
        failed += not rehearsal.passed
    show(f"{played} fixtures played, {failed} failed")
    return EXIT_USAGE if failed else EXIT_OK


def _known(causes: Iterable[str], known: Iterable[str], action: str) -> None:
    for cause in causes:
        if cause not in known:
            import difflib

            near = difflib.get_close_matches(cause, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "`kvtop playbook list` lists them"
            raise CommandError(f"playbook {action}: there is no cause {cause!r}; {hint}")
