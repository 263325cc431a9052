"""Several shards on this host, each a process of its own: for tests, the lab, and `kvstore cluster`."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from kvstore.addresses import read_cluster
from kvstore.errors import BadRequest, StoreError
from kvstore.layout import Layout

START_TIMEOUT_S = 90.0
END_TIMEOUT_S = 8.0
_alive: weakref.WeakSet[LocalCluster] = weakref.WeakSet()

MOST_SHARDS = 256
"""Of one host: a mistyped number should not fill it with processes (policy)."""


class LocalCluster:
    """A store of `shards` processes; a context manager, sync and async. Leaving it ends them all, stopped ones too.

    `options` go to every shard, `own` to one by its number, both named as the options of `kvstore serve` with
    underscores (`durability="log+sync"`, `naive_bitmap=True`, …); `environment` adds variables to one by its number.
    Ports are any free ones, or count up from `port` and `metrics_port`. Raises `StoreError` with what a shard said when
    it does not come up.
    """

    def __init__(
        self,
        shards: int,
        layout: Layout,
        blocks: int,
        *,
        run_dir: Path | None = None,
        cluster_file: Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        metrics_port: int = 0,
        own: Mapping[int, Mapping[str, Any]] | None = None,
        environment: Mapping[int, Mapping[str, str]] | None = None,
        **options: Any,
    ) -> None:
        if shards < 1:
            raise BadRequest(f"a cluster needs at least one shard, not {shards}")
        if shards > MOST_SHARDS:
            raise BadRequest(f"{shards} shards on one host: each is a process, and at most {MOST_SHARDS} are started")
        self.layout = layout
        self._count = shards
        self._options = {"blocks": blocks, **options}
        self._own = own or {}
        self._environment = environment or {}
        self._listen = (host, port, metrics_port)
        self._given_run_dir = run_dir
        self._given_file = cluster_file
        self._made_dir: Path | None = None
        self._run_dir = Path()
        self._file = Path()
        self._lifeline = (-1, -1)
        self._held = -1
        """A lock on the directory that we made: nobody clears it away while we live."""
        self.processes: list[subprocess.Popen[bytes]] = []
        self.facts: list[dict[str, Any]] = []

    # --- what it is -------------------------------------------------------------------------------------------------

    @property
    def file(self) -> Path:
        """The cluster file."""
        return self._file

    @property
    def addresses(self) -> list[str]:
        return [str(facts["address"]) for facts in self.facts]

    @property
    def targets(self) -> str:
        """What `Client.connect` takes."""
        return ",".join(self.addresses)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    @property
    def metrics_urls(self) -> list[str]:
        return [str(facts["metrics"]) for facts in self.facts]

    def log(self, number: int) -> str:
        """What a shard's process has said so far."""
        with contextlib.suppress(OSError):
            return self._output(number).read_text(encoding="utf-8", errors="replace")
        return ""

    # --- its life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every shard and wait until all serve."""
        _clear_after_the_dead()
        self._made_dir = None if self._given_run_dir else Path(tempfile.mkdtemp(prefix=f"kvstore-{os.getpid()}-"))
        self._run_dir = self._given_run_dir or self._made_dir or Path()
        if self._made_dir is not None:
            self._held = _locked(self._made_dir)
        self._file = self._given_file or self._run_dir / "cluster.json"
        _alive.add(self)
        try:
            self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._require_file()
            self._lifeline = os.pipe()
            begun = [self._begin(number, self._ports(number)) for number in range(self._count)]
            self.processes = [process for process, _ in begun]
            self.facts = [self._wait(number, process, ready) for number, (process, ready) in enumerate(begun)]
            self._write_file()
        except BaseException:
            self.close()
            raise

    def kill(self, number: int, sign: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one shard; for SIGKILL and SIGTERM wait for its end."""
        process = self.processes[number]
        process.send_signal(sign)
        if sign in (signal.SIGKILL, signal.SIGTERM):
            process.wait(END_TIMEOUT_S)

    def restart(self, number: int) -> None:
        """Start a shard that has ended again, on its former port."""
        _, page = str(self.facts[number]["metrics"]).removesuffix("/metrics").rsplit(":", 1)
        port = int(str(self.facts[number]["address"]).rsplit(":", 1)[1])
        process, ready = self._begin(number, (port, int(page)))
        self.processes[number] = process
        self.facts[number] = self._wait(number, process, ready)
        self._write_file()

    def close(self) -> None:
        """End everything: SIGTERM, and SIGKILL for who does not go. May be called twice."""
        for process in self.processes:
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGCONT)
        end = time.monotonic() + END_TIMEOUT_S
        for process in self.processes:
            try:
                process.wait(max(0.05, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for fd in self._lifeline:
            if fd >= 0:
                os.close(fd)
        self._lifeline = (-1, -1)
        if self._given_file is not None and self._is_ours(_shards_in(self._given_file)):
            self._given_file.unlink(missing_ok=True)
        if self._made_dir is not None:
            shutil.rmtree(self._made_dir, ignore_errors=True)
        if self._held >= 0:
            os.close(self._held)
            self._held = -1
        _alive.discard(self)

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> LocalCluster:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _require_file(self) -> None:
        """The cluster file can be written, and is not that of a cluster which runs."""
        for shard in _shards_in(self._file):
            if _is_a_shard(int(shard.get("pid", 0))):
                raise BadRequest(
                    f"{self._file} is that of a running cluster (shard {shard.get('shard')} is process "
                    f"{shard['pid']}): stop it, or choose another --cluster-file or --run-dir"
                )
        if self._file.is_dir():
            raise BadRequest(f"cluster file {self._file}: is a directory")
        if not self._file.parent.is_dir():
            raise BadRequest(f"cluster file {self._file}: there is no directory {self._file.parent}")
        self._file.unlink(missing_ok=True)

    def _is_ours(self, shards: list[dict[str, Any]]) -> bool:
        return bool(shards) and {each.get("instance") for each in shards} == {each["instance"] for each in self.facts}

    # --- one shard ------------------------------------------------------------------------------------------------

    def _ports(self, number: int) -> tuple[int, int]:
        _, port, page = self._listen
        return (port + number if port else 0, page + number if page else 0)

    def _begin(self, number: int, ports: tuple[int, int]) -> tuple[subprocess.Popen[bytes], int]:
        ready, tell = os.pipe()
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **self._environment.get(number, {})}
        argv = [sys.executable, "-m", "kvstore.cli", "serve", *self._words(number, ports)]
        argv += ["--ready-fd", str(tell), "--lifeline-fd", str(self._lifeline[0])]
        with self._output(number).open("ab") as output:
            # A process group of its own: Ctrl-C in a terminal is ours to pass on.
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=(tell, self._lifeline[0]),
                process_group=0,
            )
        os.close(tell)
        return process, ready

    def _words(self, number: int, ports: tuple[int, int]) -> list[str]:
        host = self._listen[0]
        options: dict[str, Any] = {
            "layout": self.layout.as_json(),
            "shard": number,
            "shards": self._count,
            "listen": f"{host}:{ports[0]}",
            "metrics_port": ports[1],
            "run_dir": self._run_dir,
            "cluster_file": self._file,
            **self._options,
            **self._own.get(number, {}),
        }
        if options.get("durability", "none") != "none":
            options["log_dir"] = Path(options.get("log_dir") or self._run_dir / "log") / str(number)
        words: list[str] = []
        for name, value in options.items():
            flag = "--" + name.replace("_", "-")
            if value is True:
                words.append(flag)
            elif value is not False and value is not None:
                words += [flag, str(value)]
        return words

    def _wait(self, number: int, process: subprocess.Popen[bytes], ready: int) -> dict[str, Any]:
        """Its facts, once it serves."""
        said = b""
        end = time.monotonic() + START_TIMEOUT_S
        with open(ready, "rb", buffering=0) as pipe:
            while not said.endswith(b"\n"):
                if not select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
                    raise StoreError(f"shard {number} did not come up within {START_TIMEOUT_S:g} s")
                more = pipe.read(65_536)
                if not more:
                    process.wait()
                    lines = self.log(number).strip().splitlines() or [f"exit code {process.returncode}"]
                    raise StoreError(f"shard {number}: {lines[-1].removeprefix('kvstore serve: ')}")
                said += more
        facts: dict[str, Any] = json.loads(said)
        return facts

    def _output(self, number: int) -> Path:
        return self._run_dir / f"shard-{number}.log"

    def _write_file(self) -> None:
        """At once or not at all: shards read it to find their peers."""
        document = {"schema": "kvstore.cluster/1", "shards": self.facts}
        half = self._file.with_name(self._file.name + ".new")
        half.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        half.replace(self._file)


def _shards_in(path: Path) -> list[dict[str, Any]]:
    """What a cluster file says; nothing for none, or for something else."""
    try:
        return read_cluster(path)
    except BadRequest:
        return []


def _is_a_shard(pid: int) -> bool:
    try:
        return pid > 0 and b"kvstore" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _clear_after_the_dead() -> None:
    """Remove the directories of clusters whose process was killed before it could.

    The number in a directory's name may be of another PID namespace (containers that share a /tmp): so what counts is
    that nobody holds its lock; the number only spares those that are just being made here.
    """
    for path in Path(tempfile.gettempdir()).glob("kvstore-*-*"):
        maker = path.name.split("-")[1]
        with contextlib.suppress(OSError):
            if maker.isdecimal() and path.stat().st_uid == os.geteuid() and not Path(f"/proc/{maker}").exists():
                held = _locked(path)
                try:
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(held)


def _locked(folder: Path) -> int:
    """A descriptor that holds the lock on a directory; `OSError` when somebody else does."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


@atexit.register
def _end_all() -> None:
    for cluster in list(_alive):
        cluster.close()
