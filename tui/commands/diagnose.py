"""``kvtop diagnose``: collect (or take what was recorded), test every playbook, report."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tui.commands import EXIT_NOTHING, EXIT_UNKNOWN, CommandError
from tui.commands.errors import plain_errors
from tui.commands.session import HISTORY_MS, Session, add_target_arguments, attached, collect, objectives
from tui.commands.when import Moment, duration_option, duration_text, moment_option

if TYPE_CHECKING:
    from playbooks.grid import Grid
    from playbooks.objective import Objective
    from playbooks.playbook import Playbook
    from playbooks.verdict import Diagnosis
    from probes.rules import RuleSet

LIVE_MS = 30_000
_MARGIN_MS = 60_000  # what is asked for must not end where the data begins


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target_arguments(parser)
    parser.add_argument(
        "--for",
        dest="for_ms",
        metavar="DUR",
        type=duration_option,
        help="live: collect so long (30s); else: the last DUR",
    )
    parser.add_argument(
        "--at", metavar="T", type=moment_option, help="the window ends here (default: the end of the data)"
    )
    parser.add_argument(
        "--against", metavar="T", type=moment_option, help="compare with the window back there, as -24h"
    )
    parser.add_argument("--slo", metavar="EXPR", action="append", default=[], help="your objective: 'expr op number'")
    parser.add_argument("--strict", action="store_true", help="exit 3 when any cause cannot be decided")
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--json", action="store_true", help="for machines (kvscope.diagnosis/1)")
    style.add_argument("--markdown", action="store_true", help="for a ticket")
    parser.add_argument(
        "--playbooks", metavar="DIR", type=Path, action="append", default=[], help="your own playbooks, too"
    )
    parser.epilog = (
        "exit codes: 0 healthy, 1 a finding, 2 usage or rule error, 3 cannot tell (data came, but capacity, queue,\n"
        "preemption or freshness is undecided; latency may be), 4 nothing could be collected"
    )


def run(args: argparse.Namespace) -> int:
    from playbooks.playbook import load_playbooks

    with plain_errors():
        playbooks = load_playbooks(args.playbooks)
        attachment = attached(args, lookback_ms=_lookback_ms(args))
        wanted = objectives([*args.slo, *attachment.config.slo])
        session = collect(attachment, args.for_ms or LIVE_MS)
        grid = window(session, args.at, args.for_ms, args.against)
        diagnosis = diagnosis_of(session, grid, playbooks, wanted)
    _print(diagnosis, args)
    code = diagnosis.exit_code(strict=args.strict)
    # An empty page is an answer, but it is not data: as `once` says.
    return EXIT_NOTHING if session.empty and code == EXIT_UNKNOWN else code


def _lookback_ms(args: argparse.Namespace) -> int:
    """How far back from now a Prometheus server must be asked for the window, and for the one to compare it with."""
    now = round(time.time() * 1000)
    end = args.at.resolve(now) if args.at else now
    back = now - end + (args.for_ms or HISTORY_MS)
    if args.against:
        back += max(0, end - args.against.resolve(end))
    return back + _MARGIN_MS if back != HISTORY_MS else back


def diagnosis_of(
    session: Session, grid: Grid, playbooks: list[Playbook], objectives: tuple[Objective, ...]
) -> Diagnosis:
    """Test every playbook on a window of what was collected."""
    from playbooks.engine import Case, diagnose
    from playbooks.verdict import SourceLine

    sources = tuple(
        SourceLine(one.target, one.state, one.age_s(grid.end_ms), one.error, one.incomplete)
        for one in session.statuses_at(grid.end_ms)
    )
    rules = cast("RuleSet", session.view.rules)
    return diagnose(session.view, Case(grid, sources, objectives), playbooks, rules)


def window(
    session: Session, at: Moment | None = None, for_ms: int | None = None, against: Moment | None = None
) -> Grid:
    """The window of the diagnosis within the data that there is."""
    from playbooks.grid import Grid

    end = session.moment(at, "--at")
    start = min(session.start_at(end), end)
    if for_ms and not session.scraped:
        start = max(start, end - for_ms)
    shift = None
    if against:
        shift = end - against.resolve(end)
        if shift <= 0:
            raise CommandError("--against must lie before the window, as in --against -24h")
        if start - shift < session.start_ms:
            raise CommandError(f"--against: the window {duration_text(shift)} back is not in the data; {session.held}")
    return Grid(start, end, session.interval_ms, shift)


def _print(diagnosis: Diagnosis, args: argparse.Namespace) -> None:
    from playbooks.report import as_json, as_markdown, as_text
    from tui.commands.output import print_json, show

    if args.json:
        print_json(as_json(diagnosis))
    else:
        show(as_markdown(diagnosis) if args.markdown else as_text(diagnosis))
