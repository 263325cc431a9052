"""``kvtop [TARGET…]``: the screens."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tui.commands import CommandError
from tui.commands.errors import plain_errors
from tui.commands.overview import EXIT_CODES, TARGETS
from tui.commands.session import add_target_arguments, attached
from tui.commands.when import duration_option
from tui.cursor import SPEEDS

if TYPE_CHECKING:
    from probes.attach import Attachment
    from tui.options import Options

THEMES = ("okabe-dark", "okabe-light", "high-contrast")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target_arguments(parser)
    parser.add_argument(
        "--window", metavar="DUR", type=duration_option, help="of rates and quantiles (default: 1m or more)"
    )
    add_look_arguments(parser)
    parser.add_argument("--play", action="store_true", help="a recording: play it from its beginning")
    speeds = ", ".join(map(str, SPEEDS))
    parser.add_argument(
        "--speed", metavar="N", type=int, choices=SPEEDS, default=1, help=f"… so many times as fast: {speeds}"
    )
    parser.add_argument("--playbooks", metavar="DIR", type=Path, help="your own playbooks, too")
    parser.epilog = f"{TARGETS}\n\nNO_COLOR is honoured; q quits, ? shows the keys.\n\n{EXIT_CODES}"


def add_look_arguments(parser: argparse.ArgumentParser) -> None:
    """How the screens look, wherever they are opened from."""
    parser.add_argument("--theme", choices=THEMES, default=THEMES[0], help="colours (all safe for colour-blind eyes)")
    parser.add_argument("--ascii", action="store_true", help="no characters beyond ASCII")


def run(args: argparse.Namespace) -> int:
    from tui.options import Options

    options = Options(
        interval_ms=args.interval or 1000,
        window_ms=args.window,
        theme=args.theme,
        ascii=args.ascii or not can_draw(),
        label=", ".join(args.targets),
        opening=_opening(args.targets),
        play=args.play,
        speed=args.speed,
        playbooks=args.playbooks,
    )
    return open_screen(args, options)


def open_screen(args: argparse.Namespace, options: Options) -> int:
    """Refuse what cannot work before the screen opens; attach behind it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("the screens need a terminal; without one: kvtop once, kvtop diagnose")
    refuse_dumb("kvtop once, kvtop diagnose")
    _check(args)

    def attach() -> Attachment:
        return attached(args)

    from tui.launch import run as show

    with plain_errors():
        return show(attach, options)


def _check(args: argparse.Namespace) -> None:
    """Wrong targets, configurations (their objectives, too) and rule files are one line on the terminal, not a screen
    that closes again."""
    from probes.target import parse_target

    with plain_errors():
        for target in args.targets:
            parse_target(target)
        if args.config is not None:
            from probes.config import load_config
            from tui.commands.session import objectives

            if slo := load_config(args.config).slo:
                objectives(slo)
        if args.rules:
            from probes.rules import RuleSet

            RuleSet.load(args.rules)
    if not args.targets and args.config is None:
        from tui.commands.session import found_here

        args.targets = found_here()


def _opening(targets: Sequence[str]) -> str:
    """What is done until there is data."""
    files = [Path(target).name for target in targets if Path(target).is_file()]
    return f"reading {', '.join(files)}…" if files else "connecting"


def refuse_dumb(instead: str) -> None:
    """A terminal that can place no cursor can show no screens."""
    if os.environ.get("TERM") == "dumb":
        raise CommandError(f"the screens need a terminal that can place its cursor (TERM is dumb); without: {instead}")


def can_draw() -> bool:
    """Whether the terminal has the signs of the screens; if not, they are drawn in ASCII."""
    return "utf" in (sys.stdout.encoding or "").lower() and os.environ.get("TERM") != "linux"
