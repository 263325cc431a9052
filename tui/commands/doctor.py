"""``kvtop doctor``: what can be seen from here, what not, and why."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from playbooks.printable import name_text
from tui.commands import EXIT_NOTHING, EXIT_OK, CommandError
from tui.commands.errors import plain_errors
from tui.commands.session import Session, add_target_arguments, attached, collect
from tui.doctor.check import Check, State
from tui.doctor.environment import environment

_SHOWN = 5  # of signals that one advice would bring; --json lists all
_MARKS = {State.OK: "ok", State.NOTE: "note", State.WRONG: "WRONG"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target_arguments(parser)
    parser.add_argument("--json", action="store_true", help="for machines (kvscope.doctor/1)")
    parser.epilog = "exit codes: 0 looked at, 2 usage, 4 targets were given and none could be collected"


def run(args: argparse.Namespace) -> int:
    checks = environment()
    session = None
    with plain_errors():
        try:
            session = collect(attached(args))
        except CommandError as error:
            if error.code != EXIT_NOTHING:  # nothing on this host is an answer, too
                raise
            checks.append(Check("targets", State.NOTE, "none given, none found on this host", "kvtop doctor host:port"))
    if args.json:
        _print_json(checks, session)
    else:
        _print_text(checks, session)
    return EXIT_NOTHING if session is not None and session.empty else EXIT_OK


def _print_json(checks: Sequence[Check], session: Session | None) -> None:
    from tui.commands.output import print_json
    from tui.doctor.targets import instances, target_dict

    document: dict[str, object] = {"schema": "kvscope.doctor/1", "checks": [check.as_dict() for check in checks]}
    document["targets"] = [target_dict(one, session.end_ms) for one in session.statuses] if session else []
    document["instances"] = [one.as_dict() for one in instances(session)] if session and not session.empty else []
    print_json(document)


def _print_text(checks: Sequence[Check], session: Session | None) -> None:
    from tui.commands.output import show
    from tui.commands.reading_text import folded, source_row
    from tui.commands.table import table
    from tui.doctor.targets import hosts_missing, instances

    rows = [
        [_MARKS[check.state], check.name, check.says + (f" → {check.advice}" if check.advice else "")]
        for check in checks
    ]
    show(table((), rows))
    if session is None:
        return
    show("\nTargets\n" + table((), [source_row(one, session.end_ms) for one in session.statuses], indent="  "))
    if session.empty:
        return
    found = instances(session)
    for one in found:
        show(f"\n{name_text(one.name)} ({one.kind}): {len(one.present)} canonical signals")
        for says, names in one.missing.items():
            shown = [name.removeprefix("kv:") for name in names[:_SHOWN]]
            more = [f"… {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
            show(folded("missing: ", [*shown, *more]))
            show(f"    → {says}")
    for says in hosts_missing(found):
        show(f"\nnot seen: {says}")
