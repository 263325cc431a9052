"""``kvtop demo``: a store under a real trace, or a recorded incident; through the screens or as text."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import resources
from pathlib import Path

from tui.commands import EXIT_OK
from tui.commands.errors import plain_errors
from tui.commands.top import add_look_arguments, can_draw, refuse_dumb
from tui.cursor import SPEEDS

SPEED = 10
LIVE_MS = 30_000
_STORY = """\
The demo: a KV store of four shards on this host, and minutes of production requests replayed against it
(an excerpt of the conversation trace of kvcache-ai/Mooncake, Apache-2.0), four times as fast as they came."""
_MODEL_STORY = """\
Beside it a tiny transformers model holds conversations through a shard of its own (model tiny-llama): every turn
takes the KV of the turns before from there."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recorded", action="store_true", help="replay a recorded incident of three vLLM replicas")
    parser.add_argument("--text", action="store_true", help="print what the screens would show")
    parser.add_argument(
        "--speed", metavar="N", type=int, choices=SPEEDS, default=SPEED, help=f"of the recording (default {SPEED})"
    )
    add_look_arguments(parser)
    parser.epilog = (
        "Starts a store of four shards and a workload, and looks at them until you quit; without a terminal, or with\n"
        "--text, for half a minute. The store needs the extra store; without it the recorded incident is shown."
    )


def run(args: argparse.Namespace) -> int:
    text = args.text or not (sys.stdin.isatty() and sys.stdout.isatty())
    if not args.recorded:
        from tui.commands import demo_store

        lacking = demo_store.lacking()
        if not lacking:
            return _live(args, text=text)
        needs = f"{', '.join(lacking)} (pip install '.[store]' in kvscope's checkout)"
        says = f"kvtop demo: the store needs {needs}: the recorded incident"
        print(says, file=sys.stderr)
    folder = resources.files("playbooks") / "recordings"
    story = (folder / "demo.md").read_text(encoding="utf-8")
    with resources.as_file(folder / "demo.om.gz") as path:
        if not text:
            return _show(story, path, args)
        _print(plain(story), [str(path)], " at the end of the recording")
    return EXIT_OK


def _live(args: argparse.Namespace, *, text: bool) -> int:
    from tui.commands.demo_store import lacking_model, store

    if not text:
        refuse_dumb("kvtop demo --text")
    lacking = lacking_model()
    story = _STORY if lacking else f"{_STORY}\n{_MODEL_STORY}"
    model = "" if lacking else ", and a model that talks through one more"
    print(f"kvtop demo: starting a store of four shards{model}", file=sys.stderr, flush=True)
    if lacking:
        needs = f"{', '.join(lacking)} (pip install '.[transformers]' in kvscope's checkout)"
        says = f"no model talks through it: that needs {needs}"
        print(f"kvtop demo: {says}", file=sys.stderr, flush=True)
    with plain_errors(), ExitStack() as stack:
        pages = stack.enter_context(store())
        if text:
            print("kvtop demo: watching it for half a minute", file=sys.stderr, flush=True)
            _print(story, pages, "", LIVE_MS)
            return EXIT_OK
        from probes.attach import attach
        from tui.launch import run as show
        from tui.options import Options

        options = Options(
            theme=args.theme,
            ascii=args.ascii or not can_draw(),
            label="demo: four shards, a real trace",
            opening="starting the store",
        )
        return show(lambda: attach(pages), options, farewell=story, cleared=stack.close)


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


def _print(story: str, targets: Sequence[str], when: str, for_ms: int = 0) -> None:
    from playbooks.playbook import load_playbooks
    from playbooks.report import as_text
    from probes.attach import attach
    from tui.commands.diagnose import diagnosis_of, window
    from tui.commands.once import reading
    from tui.commands.reading_text import reading_text
    from tui.commands.session import collect

    with plain_errors():
        session = collect(attach(list(targets)), for_ms)
        panels, readings = reading(session, session.end_ms)
        diagnosis = diagnosis_of(session, window(session), load_playbooks(), ())
    print(story)
    print("\n" + _heading(f"The reading{when} (kvtop once)"))
    print(reading_text(session.end_ms, session.window_at(session.end_ms), readings, panels, session.statuses))
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
