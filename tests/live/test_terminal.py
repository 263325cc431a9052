"""kvtop in a real terminal (tmux): three sizes, live and recorded, resized, and left at once."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.endpoints import Endpoint
from tests.live.living_page import LivingPage
from tests.tui.test_reading import engines

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]

SIZES = [(80, 24), (160, 48), (200, 60)]
DEADLINE_S = 30.0
ROOT = Path(__file__).parents[2]


class Terminal:
    """One kvtop in a tmux server of its own."""

    def __init__(
        self, *words: str, size: tuple[int, int], env: dict[str, str] | None = None, errors: Path | None = None
    ) -> None:
        self._server = f"kvscope-{uuid.uuid4().hex[:12]}"
        settings = [f"{name}={value}" for name, value in (env or {}).items()]
        command = ["env", *settings, sys.executable, "-m", "tui.cli", *words]
        joined = " ".join(f"'{word}'" for word in command) + (f" 2>'{errors}'" if errors else "")
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), "-c", str(ROOT),
            f"{joined}; echo left with $?; sleep 60",
        )  # fmt: skip

    def _tmux(self, *words: str) -> str:
        env = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        env.pop("TMUX", None)
        done = subprocess.run(["tmux", "-L", self._server, *words], capture_output=True, text=True, env=env, timeout=20)
        return done.stdout

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def until(self, wanted: Callable[[str], bool]) -> str:
        """The first screen that is as wanted."""
        end = time.monotonic() + DEADLINE_S
        text = ""
        while time.monotonic() < end:
            text = self.screen()
            if wanted(text):
                return text
            time.sleep(0.02)
        raise AssertionError(f"never on the screen; last:\n{text}")

    def close(self) -> None:
        self._tmux("kill-server")


@contextmanager
def kvtop(
    *words: str, size: tuple[int, int] = (80, 24), env: dict[str, str] | None = None, errors: Path | None = None
) -> Iterator[Terminal]:
    terminal = Terminal(*words, size=size, env=env, errors=errors)
    try:
        yield terminal
    finally:
        terminal.close()


class Pseudo:
    """One kvtop on a pseudo-terminal of ours: what it writes, byte by byte, and how it leaves the terminal."""

    def __init__(self, *words: str) -> None:
        pid, self._fd = pty.fork()
        if pid == 0:
            env = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
            os.chdir(ROOT)
            os.execve(sys.executable, [sys.executable, "-m", "tui.cli", *words], env)
        self.pid, self._out = pid, b""
        self._code: int | None = None
        self._before = termios.tcgetattr(self._fd)
        self.resize(24, 80)

    def __enter__(self) -> Pseudo:
        return self

    def __exit__(self, *_: object) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def write(self, data: bytes) -> None:
        os.write(self._fd, data)

    def read(self, wait_s: float) -> bytes:
        """What came within the time; empty when nothing did (or the other end is gone)."""
        if not select.select([self._fd], [], [], wait_s)[0]:
            return b""
        try:
            return os.read(self._fd, 65536)
        except OSError:
            return b""

    def until(self, wanted: bytes) -> None:
        """Read on until this was written since the last `quiet`."""
        end = time.monotonic() + DEADLINE_S
        while wanted not in self._out:
            assert time.monotonic() < end, f"never written: {wanted!r}"
            self._out += self.read(0.1)

    def quiet(self) -> None:
        """Read until nothing comes for a while, and forget it."""
        while self.read(1.0):
            pass
        self._out = b""

    def ended(self) -> int:
        """The exit code."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            self._out += self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
                self._out += self.read(0.1)
                return self._code
        raise AssertionError("it never ended")

    def restored(self) -> bool:
        """Line discipline, alternate screen, mouse and cursor are as they were."""
        asked = (b"\x1b[?1049l", b"\x1b[?1000l", b"\x1b[?1003l", b"\x1b[?25h")
        return termios.tcgetattr(self._fd) == self._before and all(words in self._out for words in asked)


def fits(text: str, size: tuple[int, int]) -> bool:
    lines = text.splitlines()
    return len(lines) <= size[1] and all(len(line) <= size[0] for line in lines)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_live(size: tuple[int, int]) -> None:
    with Endpoint("") as endpoint, LivingPage(endpoint), kvtop(endpoint.target, size=size) as terminal:
        text = terminal.until(lambda t: "● fresh" in t and "live" in t and "Prefix hits" in t)
        assert fits(text, size)
        assert "26." in text or "25." in text or "27." in text or "28." in text or "29." in text
        for key, words in (("2", "Findings"), ("3", "SAMPLES"), ("1", "ENGINE")):
            terminal.press(key)
            assert fits(terminal.until(lambda t, w=words: w in t), size)  # type: ignore[misc]
        terminal.press("q")
        assert "left with 0" in terminal.until(lambda t: "left with" in t)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_recording(size: tuple[int, int], tmp_path: Path) -> None:
    engines(tmp_path)
    with kvtop(str(tmp_path / "made.om"), size=size) as terminal:
        text = terminal.until(lambda t: "pod-2:8000" in t and "end 10:02:00" in t)
        assert fits(text, size)
        assert "90.0 %" in text
        terminal.press("Home")
        terminal.until(lambda t: "10:00:00" in t)
        terminal.press("/", "1", "0", ":", "0", "1", "Enter")
        terminal.until(lambda t: "paused 10:01:00" in t)
        terminal.press("Right")
        terminal.until(lambda t: "paused 10:01:05" in t)
        terminal.press("q")
        assert "left with 0" in terminal.until(lambda t: "left with" in t)


def test_resizing_reflows_and_too_small_says_what_it_needs(tmp_path: Path) -> None:
    engines(tmp_path)
    with kvtop(str(tmp_path / "made.om"), size=(200, 60)) as terminal:
        terminal.until(lambda t: "Events" in t and "pod-2:8000" in t)
        terminal.resize(60, 15)
        text = terminal.until(lambda t: "kvtop needs 80x24, this is 60x15" in t)
        assert "pod-2" not in text
        terminal.resize(80, 24)
        assert fits(terminal.until(lambda t: "pod-2:8000" in t), (80, 24))
        terminal.resize(40, 12)
        terminal.until(lambda t: "needs 80x24" in t)
        terminal.press("q")
        terminal.until(lambda t: "left with 0" in t)


def test_without_colour_and_without_unicode(tmp_path: Path) -> None:
    engines(tmp_path)
    with kvtop(str(tmp_path / "made.om"), "--ascii", env={"NO_COLOR": "1"}) as terminal:
        text = terminal.until(lambda t: "pod-2:8000" in t and "* fresh" in t)
        assert text.isascii()
        coloured = terminal._tmux("capture-pane", "-p", "-e")
        assert not re.search(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]", coloured)


def test_a_dead_target_is_told_in_words_and_comes_back() -> None:
    with Endpoint("") as endpoint, LivingPage(endpoint), kvtop(endpoint.target) as terminal:
        terminal.until(lambda t: "● fresh" in t)
        endpoint.behave("500")
        text = terminal.until(lambda t: "stale" in t)
        assert "▲0/1" in text
        terminal.press("3")
        assert "500" in terminal.until(lambda t: "Fault" in t)
        endpoint.behave("ok")
        terminal.press("1")
        terminal.until(lambda t: "● fresh" in t)


def test_q_leaves_at_once_while_the_endpoint_hangs() -> None:
    """Within 0.2 s; the best of three, as the machine may be busy with other things."""
    taken = []
    for _ in range(3):
        with Endpoint("") as endpoint:
            endpoint.behave("hang")
            with kvtop(endpoint.target, "--timeout", "60s") as terminal:
                terminal.until(lambda t: "no answer yet" in t)
                terminal.press("q")
                begun = time.monotonic()
                terminal.until(lambda t: "left with 0" in t)
                taken.append(time.monotonic() - begun)
        if min(taken) <= 0.2:
            return
    pytest.fail(f"q took {', '.join(f'{s:.2f} s' for s in taken)}")


def test_the_enter_that_ends_a_seek_opens_nothing(tmp_path: Path) -> None:
    engines(tmp_path)
    with kvtop(str(tmp_path / "made.om")) as terminal:
        terminal.until(lambda t: "end 10:02:00" in t)
        terminal.press("/")
        terminal.until(lambda t: "seek to" in t)
        terminal.press("10:01", "Enter")
        terminal.until(lambda t: "paused 10:01:00" in t)
        terminal.press("Right")
        assert "Where this number" not in terminal.until(lambda t: "paused 10:01:05" in t)


def test_a_hang_is_neither_healthy_nor_live() -> None:
    with Endpoint("") as endpoint, LivingPage(endpoint), kvtop(endpoint.target) as terminal:
        terminal.until(lambda t: "healthy" in t and "● live" in t)
        endpoint.behave("hang")
        text = terminal.until(lambda t: "has not answered for" in t and "stale" in t)
        assert "healthy" not in text
        assert "● live" not in text
        assert "◌0 s" not in text


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGQUIT", "SIGINT"])
def test_a_signal_leaves_the_terminal_as_it_was(name: str) -> None:
    with Pseudo("demo", "--recorded") as screen:
        screen.until(b"x10")
        number = getattr(signal, name)
        os.kill(screen.pid, number)
        assert screen.ended() == 128 + number
        assert screen.restored()


def test_ctrl_c_leaves_with_130() -> None:
    with Pseudo("demo", "--recorded") as screen:
        screen.until(b"x10")
        screen.write(b"\x03")
        assert screen.ended() == 130
        assert screen.restored()


def test_a_resize_that_ends_where_it_began_paints_all_again(tmp_path: Path) -> None:
    engines(tmp_path)
    with Pseudo(str(tmp_path / "made.om")) as screen:
        screen.until(b"10:02:00")
        screen.until(b"cannot tell")
        screen.quiet()
        for size in ((30, 100), (24, 80)):
            screen.resize(*size)
        screen.until(b"pod-2:8000")
        screen.quiet()
        screen.write(b"\x0c")
        screen.until(b"pod-2:8000")


def test_the_size_of_the_terminal_counts_not_that_of_the_environment(tmp_path: Path) -> None:
    engines(tmp_path)
    with kvtop(str(tmp_path / "made.om"), env={"COLUMNS": "200", "LINES": "60"}) as terminal:
        assert fits(terminal.until(lambda t: "pod-2:8000" in t and "q quit" in t), (80, 24))


def test_the_screens_are_drawn_where_standard_error_is_a_file(tmp_path: Path) -> None:
    engines(tmp_path)
    errors = tmp_path / "errors"
    with kvtop(str(tmp_path / "made.om"), errors=errors) as terminal:
        terminal.until(lambda t: "pod-2:8000" in t and "q quit" in t)
    assert errors.read_text() == ""


def test_a_dumb_terminal_is_refused_in_one_line() -> None:
    for words in (("demo", "--recorded"), ("demo",), ("127.0.0.1:1",)):
        with kvtop(*words, env={"TERM": "dumb"}) as terminal:
            text = terminal.until(lambda t: "left with 2" in t)
            assert "TERM is dumb" in text


def test_the_demo_takes_the_options_of_the_screens_and_an_empty_no_color_asks_for_nothing() -> None:
    with kvtop("demo", "--recorded", "--ascii", "--theme", "high-contrast", env={"NO_COLOR": ""}) as terminal:
        assert terminal.until(lambda t: "> x10" in t and "pod-2" in t).isascii()
        assert re.search(r"\x1b\[[\d;]*[34]8[;:]", terminal._tmux("capture-pane", "-p", "-e"))
