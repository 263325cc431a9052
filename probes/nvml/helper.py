"""The child process seen from outside: started when it is first asked, killed when it hangs, started again later."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

_ROOT = str(Path(__file__).resolve().parents[2])
WORDS = (sys.executable, "-P", "-m", "probes.nvml.child")
AGAIN_S = 2.0
AGAIN_MOST_S = 60.0
"""Pause before the process is started again, doubled up to the second (policy): a driver that hangs or is not there
must cost next to nothing."""


class HelperEndedError(Exception):
    """The process ended instead of answering; the text says how."""


class Helper:
    """One child process at a time. ``ask`` and ``kill`` are called from one thread."""

    def __init__(self, words: Sequence[str] = WORDS, again_s: float = AGAIN_S) -> None:
        self._words = list(words)
        self._first_pause_s = again_s
        self._pause_s = again_s
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: subprocess.Popen[bytes] | None = None
        self._not_before = 0.0

    @property
    def fresh(self) -> bool:
        """Whether the next question starts the process."""
        return self._process is None or self._process.poll() is not None

    def waits(self) -> float:
        """Seconds for which no process is started yet; 0 when one may be."""
        return max(0.0, self._not_before - time.monotonic())

    @property
    def stuck(self) -> bool:
        """Whether a killed process is still there: inside a call into the kernel that nothing can end."""
        return self._killed is not None and self._killed.poll() is None

    def ask(self) -> Future[dict[str, Any]]:
        """A reading; its exception is ``HelperEndedError`` or an ``OSError``."""
        answer: Future[dict[str, Any]] = Future()
        process = self._process

        def wait() -> None:
            try:
                answer.set_result(_answered(process))
            except BaseException as failure:
                answer.set_exception(failure)

        try:
            if process is None or process.poll() is not None:
                process = self._process = self._start()
            assert process.stdin is not None
            process.stdin.write(b"read\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: its output says so, too
        except OSError as failure:
            answer.set_exception(failure)
            return answer
        threading.Thread(target=wait, name="nvml", daemon=True).start()
        return answer

    def rest(self) -> float:
        """Start no process for a while, longer each time; the answer is for how long, in seconds."""
        pause, self._pause_s = self._pause_s, min(2 * self._pause_s, AGAIN_MOST_S)
        self._not_before = time.monotonic() + pause
        return pause

    def well(self) -> None:
        """It has answered: the next trouble is a new one."""
        self._pause_s = self._first_pause_s

    def kill(self) -> None:
        """End the process at once. One that the kernel does not let go is left behind, and watched (``stuck``)."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.kill()
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
        self._killed = process

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(part for part in (_ROOT, os.environ.get("PYTHONPATH")) if part)
        return subprocess.Popen(
            self._words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for kvtop, which ends it in its own time
        )


def _answered(process: subprocess.Popen[bytes] | None) -> dict[str, Any]:
    """The next line of a process. Blocks: for a thread of its own."""
    assert process is not None
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.endswith(b"\n"):
        raise HelperEndedError(_ending(process))
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise HelperEndedError("it said something that is no answer")
    return answer


def _ending(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(1.0)
    except subprocess.TimeoutExpired:
        return "it closed its output"
    if code < 0:
        import signal

        try:
            return f"it was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"it was ended by signal {-code}"
    return f"it exited with {code}"
