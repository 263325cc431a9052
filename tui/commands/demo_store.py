"""The live demo: a store of four shards, a trace replayed against it, and a place for both that is cleared away.

Everything of the store runs in processes of its own: kvtop looks at it from outside, as it does at any target.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tui.commands import CommandError

SHARDS = 4
BLOCKS = 32_768  # of 64 tokens, a shard: room for the whole excerpt, and for sessions to hold it
SPEED = 4
_LAYOUT = (
    "--model", "trace", "--layers", "1", "--head-groups", "1", "--heads", "1", "--head-dim", "1",
    "--dtype", "uint8", "--block-tokens", "64",
)  # fmt: skip
_NEEDS = ("grpc", "xxhash", "prometheus_client")
_READY_S = 30.0
_LEAVE_S = 15.0


def lacking() -> list[str]:
    """What the store needs and this environment does not have (the extra ``store``)."""
    return [name for name in _NEEDS if importlib.util.find_spec(name) is None]


@contextmanager
def store() -> Iterator[list[str]]:
    """A running store under load; yields the addresses of its shards' pages. Errors: `CommandError`."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)  # what was started must not outlive us
    with TemporaryDirectory(prefix="kvtop-demo-") as place:
        folder = Path(place)
        lifeline, ours = os.pipe()
        cluster = _start(folder / "cluster.log", _cluster(folder), lifeline)
        replay = _Replay(folder, lifeline)
        try:
            pages = _pages(cluster, folder)
            replay.start()
            yield pages
        finally:
            cluster.terminate()  # first: whoever ends us may not wait for the rest
            replay.stop()
            _end(cluster)
            os.close(lifeline)
            os.close(ours)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _cluster(folder: Path) -> list[str]:
    where = ("--run-dir", str(folder / "run"), "--log-dir", str(folder / "log"), "--durability", "log")
    ports = ("--listen", "127.0.0.1:0", "--metrics-port", "0", "--cluster-file", str(folder / "cluster.json"))
    return ["cluster", "--shards", str(SHARDS), "--blocks", str(BLOCKS), *_LAYOUT, *where, *ports]


def _start(log: Path, words: Sequence[str], lifeline: int) -> subprocess.Popen[bytes]:
    """A command of the store, which ends with us, even by kill -9: at the end of the pipe `lifeline`. What it says goes
    to a file, so that it never writes over the screen."""
    with log.open("ab") as out:
        command = [sys.executable, "-m", "kvstore.cli", *words, "--lifeline-fd", str(lifeline)]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, pass_fds=(lifeline,)
        )


def _pages(cluster: subprocess.Popen[bytes], folder: Path) -> list[str]:
    """The addresses, once every shard serves."""
    until = time.monotonic() + _READY_S
    while time.monotonic() < until:
        try:
            found = json.loads((folder / "cluster.json").read_text(encoding="utf-8"))
            return [str(shard["metrics"]) for shard in found["shards"]]
        except (OSError, ValueError, KeyError):
            if cluster.poll() is not None:
                break
            time.sleep(0.05)
    raise CommandError(f"the store did not start: {_last_words(folder / 'cluster.log')} (kvtop demo --recorded)")


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_LEAVE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class _Replay(threading.Thread):
    """Plays the packaged excerpt, and once it is over again, until stopped."""

    def __init__(self, folder: Path, lifeline: int) -> None:
        super().__init__(name="kvtop-demo-replay", daemon=True)
        self._folder = folder
        self._lifeline = lifeline
        self._stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        words = ["replay", "--connect", str(self._folder / "cluster.json"), "--speed", str(SPEED)]
        words += ["--sessions", "--session-ttl", "60s", "--json"]
        while not self._stopped.is_set():
            with self._lock:
                if self._stopped.is_set():
                    return
                self._process = _start(self._folder / "replay.log", words, self._lifeline)
            if self._process.wait() != 0:
                self._stopped.wait(1.0)

    def stop(self) -> None:
        with self._lock:
            self._stopped.set()
        if self._process is not None:
            _end(self._process)
