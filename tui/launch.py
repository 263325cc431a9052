"""Opening the screen on a real terminal, and leaving it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tui.app import KvtopApp, Monitored

if TYPE_CHECKING:
    from probes.attach import Attachment
    from tui.options import Options

_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGINT") if hasattr(signal, name))


def run(
    attach: Callable[[], Attachment],
    options: Options,
    farewell: str = "",
    cleared: Callable[[], None] = lambda: None,
) -> int:
    """Open the screen on what ``attach`` attaches to (called off the screen's thread); returns the exit code.

    ``farewell`` is printed after the screen was left with ``q``; ``cleared`` is called last, since nothing behind it
    may come to run. A signal that ends kvtop (and Ctrl-C) gives 128 and
    its number, with the terminal as it was before.
    """

    def monitor(made: KvtopApp) -> Monitored:
        from tui.monitor import Monitor

        return Monitor(attach, made.post_message, options)

    # The terminal's own size counts, and an empty NO_COLOR asks for nothing (no-color.org).
    for name in ("COLUMNS", "LINES", *(() if os.environ.get("NO_COLOR") else ("NO_COLOR",))):
        os.environ.pop(name, None)
    app = KvtopApp(monitor, options)
    app.signals = _ENDING
    # The diagnosis is Python, in another thread: it must hand over quickly when a key comes.
    sys.setswitchinterval(0.001)
    code = app.run() or 0
    if app.says:
        print(f"kvtop: {app.says}", file=sys.stderr)
    elif farewell and code == 0:
        print(farewell, flush=True)
    cleared()
    _leave(code)
    return code


def _leave(code: int) -> None:
    """Leave at once, where Python would wait for a thread: one that asks a name server that hangs, for example."""
    if threading.active_count() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
