"""kvtop on a real store: the reading, the Pool screen, and the demo that leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.test_terminal import kvtop
from tui.commands import demo_store

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(bool(demo_store.lacking()), reason="the store's packages are not installed"),
]


@pytest.fixture(scope="module")
def pages() -> Iterator[list[str]]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    with demo_store.store(model=False) as found:
        yield found
    for number, handler in kept.items():
        signal.signal(number, handler)


def once(*words: str) -> dict[str, object]:
    command = [sys.executable, "-m", "tui.cli", "once", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_reading_has_every_shard_in_its_own_numbers(pages: list[str]) -> None:
    found = once(*pages)
    entities: list[dict[str, dict[str, object]]] = found["entities"]  # type: ignore[assignment]
    shards = {str(one["labels"]["shard"]): one for one in entities if "shard" in one["labels"]}
    assert sorted(shards) == ["0", "1", "2", "3"]
    for one in shards.values():
        usage: dict[str, object] = one["values"]["kv:pool_usage_ratio"]  # type: ignore[assignment]
        assert usage["state"] == "fresh"
        assert one["labels"]["system"] == "kvstore"


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_the_pool_screen_shows_the_maps_of_a_real_store(pages: list[str]) -> None:
    with kvtop(*pages, size=(80, 24)) as terminal:
        terminal.until(lambda text: "shard 3" in text and "fresh" in text)
        terminal.press("4")
        text = terminal.until(lambda text: "a window takes 8" in text and "conve" in text)
        assert "used" in text.split("FREE BLOCKS")[0]
        assert "a cell: 128 blocks" in text
        terminal.press("Down", "Down")
        terminal.until(lambda text: "shard 2  127.0.0.1:" in text and "shard 3  127.0.0.1:" not in text)
        terminal.resize(160, 48)
        terminal.until(lambda text: all(f"shard {number}  127.0.0.1:" in text for number in range(4)))
        terminal.press("q")
        terminal.until(lambda text: "left with 0" in text)


def test_a_demo_that_is_ended_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "tui.cli", "demo", "--text"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env) as demo:
        _until(lambda: any(tmp_path.glob("*/replay.log")))
        mine = _processes_of(tmp_path)
        assert mine
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(30) == 128 + signal.SIGTERM
    _until(lambda: not _processes_of(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_demo_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "tui.cli", "demo", "--text"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env) as demo:
        _until(lambda: any(tmp_path.glob("*/replay.log")))
        assert _processes_of(tmp_path)
        demo.kill()
    _until(lambda: not _processes_of(tmp_path))


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_demo_on_the_screen_leaves_nothing_behind(tmp_path: Path) -> None:
    with kvtop("demo", size=(80, 24), env={"TMPDIR": str(tmp_path)}) as terminal:
        terminal.until(lambda text: "1 Overview" in text)
        assert _processes_of(tmp_path)
        terminal.press("q")
        terminal.until(lambda text: "left with 0" in text)
        _until(lambda: not _processes_of(tmp_path))
        assert not list(tmp_path.iterdir())


def _processes_of(folder: Path) -> list[str]:
    """Processes whose command line names a file below the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(os.fsencode(folder)) for word in words):
            found.append(process.parent.name)
    return found


def _until(wanted: object, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not wanted():  # type: ignore[operator]
        assert time.monotonic() < end, "never so"
        time.sleep(0.05)
