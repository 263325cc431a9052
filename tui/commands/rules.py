"""``kvtop rules``: Prometheus rules on stdout, recording rules first, then the playbooks' alerts."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tui.commands import EXIT_OK, CommandError
from tui.commands.errors import plain_errors
from tui.commands.output import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--recording", action="store_true", help="only the recording rules (engine names to kv:* names)")
    part.add_argument("--alerts", action="store_true", help="only the alerts (they rest on the recording rules)")
    part.add_argument("--dcgm-csv", action="store_true", help="instead: counters for dcgm-exporter (its option -f)")
    parser.add_argument(
        "--playbooks", metavar="DIR", type=Path, action="append", default=[], help="your own playbooks, too"
    )
    parser.add_argument(
        "--rules",
        metavar="DIR",
        type=Path,
        action="append",
        default=[],
        help="your own rule files, too",
    )
    parser.add_argument("--runbooks", metavar="URL", help="where the runbook pages are published (for runbook_url)")
    parser.epilog = "example: kvtop rules > kvscope.rules.yml && promtool check rules kvscope.rules.yml"


def run(args: argparse.Namespace) -> int:
    from exporters.rules import RUNBOOK_BASE, render_alerts, render_recording_rules, render_rules
    from playbooks.playbook import load_playbooks
    from probes.rules import RuleSet

    if args.dcgm_csv:
        _alone(args)
        from exporters.dcgm import render_counters

        show(render_counters(), end="")
        return EXIT_OK
    base = RUNBOOK_BASE if args.runbooks is None else _base(args.runbooks)
    with plain_errors():
        if args.recording:
            text = render_recording_rules(RuleSet.load(args.rules))
        elif args.alerts:
            text = render_alerts(load_playbooks(args.playbooks), base)
        else:
            text = render_rules(RuleSet.load(args.rules), load_playbooks(args.playbooks), base)
    show(text, end="")
    return EXIT_OK


def _alone(args: argparse.Namespace) -> None:
    """The counters are dcgm-exporter's own list: no rule, playbook or address goes into it."""
    for option, value in (("--playbooks", args.playbooks), ("--rules", args.rules), ("--runbooks", args.runbooks)):
        if value:
            raise CommandError(f"--dcgm-csv prints dcgm-exporter's counters and takes no {option}: leave one out")


def _base(url: str) -> str:
    if not re.fullmatch(r"https?://[^\s\x00-\x1f\x7f]+", url):
        from playbooks.printable import name_text

        raise CommandError(f"--runbooks {name_text(url)}: not a URL, as in https://example.org/runbooks")
    return url
