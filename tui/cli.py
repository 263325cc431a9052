"""The entry point: light, so that a Ctrl-C while the rest is being loaded is a Ctrl-C and no traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``kvtop``; returns the exit code (0 to 4; 70 for a fault of kvtop itself, 74 for an answer that cannot be
    written, 130 after Ctrl-C). Without ``argv`` it is the program itself, and ends the process."""
    try:
        from tui.program import run

        code = run(list(sys.argv[1:] if argv is None else argv))
        if argv is None:
            _leave(code)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    return code


def _leave(code: int) -> None:
    """End the process here: all is written and closed, and taking every module and object apart, which Python does
    next, costs as much as a scrape. A profiler or a debugger is left to finish its work."""
    if sys.gettrace() is None and sys.getprofile() is None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                continue
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
