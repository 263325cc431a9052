"""A program in a pseudo-terminal, watched from outside: when it paints, what CPU and memory it takes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
_TAIL = 1 << 18
PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024


@dataclass(frozen=True, slots=True)
class Watched:
    """``first_byte_s`` and ``first_data_s`` from the start of the process (None: never); CPU as percent of one core
    over the measured seconds; resident memory in MB at the end (shared pages count)."""

    first_byte_s: float | None
    first_data_s: float | None
    cpu_percent: float
    rss_mb: float
    output_bytes: int


def user_env() -> dict[str, str]:
    """The environment without what changes how fast Python starts (it would compile every module at every start)."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


class Terminal:
    """One child in a pseudo-terminal of the given size; a thread drains what it writes and looks for ``data``."""

    def __init__(self, argv: list[str], columns: int, rows: int, data: re.Pattern[bytes]) -> None:
        self._data = data
        self.first_byte: float | None = None
        self.first_data: float | None = None
        self.written = 0
        self._tail = b""
        self.started = time.perf_counter()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            # The size must be there before the program asks for it.
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execvpe(argv[0], argv, {**user_env(), "TERM": "xterm-256color", "COLORTERM": "truecolor"})
        self._done = threading.Event()
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def _drain(self) -> None:
        while not self._done.is_set():
            ready, _, _ = select.select([self._fd], [], [], 0.2)
            if not ready:
                continue
            try:
                piece = os.read(self._fd, 65536)
            except OSError:
                return
            if not piece:
                return
            now = time.perf_counter() - self.started
            self.first_byte = now if self.first_byte is None else self.first_byte
            self.written += len(piece)
            if self.first_data is None:
                self._tail = (self._tail + piece)[-_TAIL:]
                if self._data.search(self._tail):
                    self.first_data = now

    def send(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def close(self, quit_keys: bytes = b"q") -> float | None:
        """Ask the program to quit; seconds until it had gone (None: it had to be killed)."""
        asked = time.perf_counter()
        with contextlib.suppress(OSError):
            self.send(quit_keys)
        took: float | None = None
        while time.perf_counter() - asked < 6:
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                took = time.perf_counter() - asked
                break
            time.sleep(0.005)
        else:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self._done.set()
        self._reader.join(timeout=1)
        os.close(self._fd)
        return took


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                found += tree(int(child))
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process tree, ended children included."""
    total = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
            total += sum(int(fields[k]) for k in (11, 12, 13, 14))
    return total / TICKS


def rss_mb(pid: int) -> float:
    total = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1])
    return total * PAGE_KB / 1024


def watch(
    argv: list[str], data: str, seconds: float, columns: int = 160, rows: int = 48, settle: float = 4.0
) -> tuple[Watched, float | None]:
    """Run for ``settle`` and then ``seconds``, of which CPU is measured; then ``q``. Also says how long ``q`` took.

    ``data`` is a regular expression of what stands on the screen only beside data.
    """
    terminal = Terminal(argv, columns, rows, re.compile(data.encode()))
    time.sleep(settle)
    before, since = cpu_seconds(terminal.pid), time.perf_counter()
    time.sleep(seconds)
    used, elapsed = cpu_seconds(terminal.pid) - before, time.perf_counter() - since
    memory = rss_mb(terminal.pid)
    watched = Watched(terminal.first_byte, terminal.first_data, 100 * used / elapsed, memory, terminal.written)
    return watched, terminal.close()
