"""``kvtop demo``: a recorded incident that ships with the package, through the screens or as text."""

from __future__ import annotations

import argparse
import re
import sys
from importlib import resources
from pathlib import Path

from tui.commands import EXIT_OK
from tui.commands.errors import plain_errors
from tui.commands.top import add_look_arguments, can_draw, refuse_dumb
from tui.cursor import SPEEDS

SPEED = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", action="store_true", help="print the story, the reading and the diagnosis")
    parser.add_argument(
        "--speed", metavar="N", type=int, choices=SPEEDS, default=SPEED, help=f"of the replay (default {SPEED})"
    )
    add_look_arguments(parser)
    parser.epilog = "Without a terminal, as with --text. The recording can be given to every other command, too."


def run(args: argparse.Namespace) -> int:
    folder = resources.files("playbooks") / "recordings"
    story = (folder / "demo.md").read_text(encoding="utf-8")
    with resources.as_file(folder / "demo.om.gz") as path:
        if args.text or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _print(story, path)
        else:
            return _show(story, path, args)
    return EXIT_OK


def _show(story: str, path: Path, args: argparse.Namespace) -> int:
    refuse_dumb("kvtop demo --text")
    from probes.attach import attach
    from tui.launch import run as show
    from tui.options import Options

    with plain_errors():
        options = Options(
            theme=args.theme,
            ascii=args.ascii or not can_draw(),
            label=f"demo: {_title(story)}",
            opening="reading the demo recording",
            play=True,
            speed=args.speed,
        )
        more = f"The diagnosis in words: kvtop demo --text, or: kvtop diagnose {path}"
        return show(lambda: attach([str(path)]), options, farewell=f"{plain(story)}\n\n{more}")


def _print(story: str, path: Path) -> None:
    from playbooks.playbook import load_playbooks
    from playbooks.report import as_text
    from probes.attach import attach
    from tui.commands.diagnose import diagnosis_of, window
    from tui.commands.once import reading
    from tui.commands.reading_text import reading_text
    from tui.commands.session import collect

    with plain_errors():
        session = collect(attach([str(path)]))
        panels, readings = reading(session, session.end_ms)
        diagnosis = diagnosis_of(session, window(session), load_playbooks(), ())
    print(plain(story))
    print("\n" + _heading("The reading at the end of the recording (kvtop once)"))
    print(reading_text(session.end_ms, session.window_ms, readings, panels, session.statuses))
    print("\n" + _heading("The diagnosis (kvtop diagnose)"))
    print(as_text(diagnosis))


def _title(story: str) -> str:
    return story.splitlines()[0].lstrip("# ").removeprefix("The demo incident: ")


def _heading(text: str) -> str:
    return f"{text}\n{'=' * len(text)}"


_EMPHASIS = re.compile(r"\*\*|`|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)")


def plain(markdown: str) -> str:
    """Markdown of the simple kind as a terminal shows it: headings underlined, tables as lines."""
    lines = []
    for line in markdown.strip().splitlines():
        if line.startswith("#"):
            lines.append(_heading(_EMPHASIS.sub("", line.lstrip("# "))))
        elif line.startswith("|"):
            cells = [_EMPHASIS.sub("", cell.strip()) for cell in line.strip("|").split("|")]
            if not set("".join(cells)) <= set("-: ") and cells[0] != "time (UTC)":
                lines.append(f"  {cells[0]:<8}  {'  '.join(cells[1:])}")
        else:
            lines.append(_EMPHASIS.sub("", line))
    return "\n".join(lines)
