"""A real etcd for tests, on loopback; they skip by name where there is none."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

import pytest

needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (Debian: etcd-server)")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class EtcdServer:
    """One member, its data under `folder`; a context manager."""

    def __init__(self, folder: Path, *options: str, scheme: str = "http") -> None:
        self.port, self._peers = free_port(), free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def target(self, cluster: str) -> str:
        """What a client is given."""
        return f"etcd{'s' if self.url.startswith('https') else ''}://127.0.0.1:{self.port}/{cluster}"

    def start(self) -> None:
        peers = f"http://127.0.0.1:{self._peers}"
        argv = ["etcd", "--data-dir", str(self._folder / "etcd"), "--name", "one", "--log-level", "error"]
        argv += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        argv += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        argv += ["--initial-cluster", f"one={peers}", *self._options]
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self._process.poll() is None, (self._folder / "etcd.log").read_text()
                assert time.monotonic() < end, "etcd does not come up"
                time.sleep(0.05)

    def stop(self) -> None:
        """As if its host were gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def __enter__(self) -> EtcdServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()
