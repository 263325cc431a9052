"""``kvtop record``: targets into one OpenMetrics file, until Ctrl-C or for a while; ``--repair`` mends a cut one."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from playbooks.printable import name_text, printable
from tui.commands import EXIT_NOTHING, EXIT_OK, EXIT_OUTPUT, CommandError
from tui.commands.errors import plain_errors
from tui.commands.output import show
from tui.commands.session import add_target_arguments, attached, fault, gave
from tui.commands.when import duration_option

if TYPE_CHECKING:
    from probes.attach import Attachment
    from probes.recorder import Recorder
    from probes.sources.base import SourceStatus

_HELD_BYTES = 8 << 20  # what the recorder has not yet written is one cycle; the rest of the window is not asked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target_arguments(parser)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="the recording (OpenMetrics with timestamps)")
    parser.add_argument(
        "--for", dest="for_ms", metavar="DUR", type=duration_option, help="so long (default: until Ctrl-C)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument(
        "--repair", metavar="FILE", type=Path, help="mend a recording that was cut off (kill -9, full disk)"
    )
    parser.epilog = (
        "kvtop reads a recording at any time, also after kill -9; once closed or repaired, promtool does, too:\n"
        "  promtool tsdb create-blocks-from openmetrics FILE DIR\n"
        "exit codes: 0 recorded (Ctrl-C is a proper end), 2 usage, 4 nothing could be collected, 74 not written"
    )


def run(args: argparse.Namespace) -> int:
    if args.repair is not None:
        return _repair(args)
    if args.output is None:
        raise CommandError("where to? kvtop record TARGET… -o FILE")
    if str(args.output) == "-":
        raise CommandError("a recording is put in order when it ends, which no pipe allows: name a file, as in -o a.om")
    with plain_errors(), _kept():
        from probes.recorder import Recorder, refuse_taken

        if not args.force:
            refuse_taken(args.output)
        attachment = attached(args, max_bytes=_HELD_BYTES)
        recorder = Recorder(args.output, attachment.store, overwrite=args.force)
        with recorder:
            for ending in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(ending) is not signal.SIG_IGN:  # as nohup sets it
                    signal.signal(ending, signal.default_int_handler)
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(_record(attachment, recorder, args.for_ms))
        return _told(recorder, attachment.statuses)


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """A recording that cannot be written is no wrong usage."""
    from probes.recorder import UnwritableError

    try:
        yield
    except UnwritableError as error:
        raise CommandError(printable(str(error)), EXIT_OUTPUT) from None


def _repair(args: argparse.Namespace) -> int:
    from probes.recorder import repair

    if args.targets or args.output is not None:
        raise CommandError("--repair mends its FILE in place: give no target and no -o")
    with plain_errors(), _kept():
        if args.repair.is_file() and not args.repair.stat().st_size:
            raise CommandError(f"{args.repair}: is empty, there is nothing to mend")
        mended = repair(args.repair)
    joined = f"; {mended.parts} recordings one behind the other are one now" if mended.parts > 1 else ""
    show(f"{name_text(str(args.repair))}: {mended.samples:,} samples, closed{joined}")
    return EXIT_OK


async def _record(attachment: Attachment, recorder: Recorder, for_ms: int | None) -> None:
    interval_s = attachment.sampler.interval_ms / 1000
    start = time.monotonic()
    cycles = 0
    try:
        while True:
            await attachment.cycle(round(time.time() * 1000))
            recorder.record()
            cycles += 1
            _progress(recorder, time.monotonic() - start)
            if for_ms is not None and (time.monotonic() - start + interval_s) * 1000 > for_ms:
                return
            await asyncio.sleep(max(0.0, start + cycles * interval_s - time.monotonic()))
    finally:
        await attachment.close()
        recorder.record()


def _progress(recorder: Recorder, spent_s: float) -> None:
    if sys.stderr.isatty():
        text = f"recording: {spent_s:.0f} s, {recorder.samples:,} samples (Ctrl-C ends it)"
        print(f"\r{text}", end="", file=sys.stderr, flush=True)


def _told(recorder: Recorder, statuses: Sequence[SourceStatus]) -> int:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    faults = [fault(status) for status in statuses if not status.ok or status.state == "empty"]
    if not any(map(gave, statuses)):
        recorder.path.unlink(missing_ok=True)
        why = "; ".join(faults) or "no target had answered by then; give them longer with --for"
        raise CommandError(f"nothing could be collected: {why}", EXIT_NOTHING)
    show(f"{name_text(str(recorder.path))}: {recorder.samples:,} samples")
    for one in faults:
        print(f"kvtop: {one}", file=sys.stderr)
    return EXIT_OK
