"""The live demo: a store of four shards, a trace replayed against it, and a place for both that is cleared away.
Where transformers is installed a tiny model holds conversations through a shard of its own beside it.

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
_MODEL_LAYOUT = (
    "--model", "tiny-llama", "--layers", "2", "--head-groups", "1", "--heads", "2", "--head-dim", "32",
    "--dtype", "float32", "--block-tokens", "16",
)  # fmt: skip
"""`kvstore.integrations.transformers.conversation.LAYOUT`."""
_MODEL_BLOCKS = 4096
_NEEDS = ("grpc", "xxhash", "prometheus_client")
_MODEL_NEEDS = ("torch", "transformers")
_READY_S = 30.0
_LEAVE_S = 15.0


def lacking() -> list[str]:
    """What the store needs and this environment does not have (the extra ``store``)."""
    return [name for name in _NEEDS if importlib.util.find_spec(name) is None]


def lacking_model() -> list[str]:
    """What a model needs to talk through the store (the extra ``transformers``), and is not here."""
    return [name for name in _MODEL_NEEDS if importlib.util.find_spec(name) is None]


@contextmanager
def store(*, model: bool = True) -> Iterator[list[str]]:
    """A running store under load, and a model that talks through one of its own where it can be had; yields the
    addresses of all shards' pages. Errors: `CommandError`."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)  # what was started must not outlive us
    with TemporaryDirectory(prefix="kvtop-demo-") as place:
        folder = Path(place)
        lifeline, ours = os.pipe()
        cluster = _start(folder / "cluster.log", _cluster(folder), lifeline)
        stores = [cluster]
        work = [_Repeated(folder / "replay.log", _replay(folder), lifeline)]
        if model and not lacking_model():
            stores.append(_start(folder / "model.log", _model_store(folder), lifeline))
            work.append(_Repeated(folder / "talk.log", _talk(folder), lifeline))
            work[-1].start()  # now: torch takes seconds to load
        try:
            files = (folder / "cluster.json", folder / "model.json")
            pages = [page for each, file in zip(stores, files, strict=False) for page in _pages(each, file)]
            work[0].start()
            yield pages
        finally:
            for each in stores:
                each.terminate()  # first: whoever ends us may not wait for the rest
            for each_work in work:
                each_work.stop()
            for each in stores:
                _end(each)
            os.close(lifeline)
            os.close(ours)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


_KVSTORE = ("-m", "kvstore.cli")


def _cluster(folder: Path) -> list[str]:
    where = ("--run-dir", str(folder / "run"), "--log-dir", str(folder / "log"), "--durability", "log")
    return [*_KVSTORE, "cluster", "--shards", str(SHARDS), "--blocks", str(BLOCKS), *_LAYOUT, *where, *_ports(folder)]


def _model_store(folder: Path) -> list[str]:
    where = ("--run-dir", str(folder / "model"))
    ports = _ports(folder, "model.json")
    return [*_KVSTORE, "cluster", "--shards", "1", "--blocks", str(_MODEL_BLOCKS), *_MODEL_LAYOUT, *where, *ports]


def _ports(folder: Path, file: str = "cluster.json") -> tuple[str, ...]:
    return ("--listen", "127.0.0.1:0", "--metrics-port", "0", "--cluster-file", str(folder / file))


def _replay(folder: Path) -> list[str]:
    """The packaged excerpt, once."""
    words = ["replay", "--connect", str(folder / "cluster.json"), "--speed", str(SPEED)]
    return [*_KVSTORE, *words, "--sessions", "--session-ttl", "60s", "--json"]


def _talk(folder: Path) -> list[str]:
    return ["-m", "kvstore.integrations.transformers.conversation", str(folder / "model.json")]


def _start(log: Path, words: Sequence[str], lifeline: int) -> subprocess.Popen[bytes]:
    """A program of the store, which ends with us, even by kill -9: at the end of the pipe `lifeline`. What it says goes
    to a file, so that it never writes over the screen."""
    with log.open("ab") as out:
        command = [sys.executable, *words, "--lifeline-fd", str(lifeline)]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, pass_fds=(lifeline,)
        )


def _pages(cluster: subprocess.Popen[bytes], file: Path) -> list[str]:
    """The addresses, once every shard serves."""
    until = time.monotonic() + _READY_S
    while time.monotonic() < until:
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            return [str(shard["metrics"]) for shard in found["shards"]]
        except (OSError, ValueError, KeyError):
            if cluster.poll() is not None:
                break
            time.sleep(0.05)
    raise CommandError(f"the store did not start: {_last_words(file.with_suffix('.log'))} (kvtop demo --recorded)")


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


class _Repeated(threading.Thread):
    """Runs a program, and once it is over again, until stopped."""

    def __init__(self, log: Path, words: Sequence[str], lifeline: int) -> None:
        super().__init__(name=f"kvtop-demo-{log.stem}", daemon=True)
        self._log = log
        self._words = words
        self._lifeline = lifeline
        self._stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        while not self._stopped.is_set():
            with self._lock:
                if self._stopped.is_set():
                    return
                self._process = _start(self._log, self._words, self._lifeline)
            if self._process.wait() != 0:
                self._stopped.wait(1.0)

    def stop(self) -> None:
        with self._lock:
            self._stopped.set()
        if self._process is not None:
            _end(self._process)
