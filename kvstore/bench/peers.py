"""What a fetch is measured against: plain copies of the same memory, and Redis over TCP."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvstore.header import Bytes

if TYPE_CHECKING:
    import redis

Ints = npt.NDArray[np.int64]


class Memcpy:
    """Copies slots by memcpy, one call a run, and where all runs are short by one gather in C (`take`)."""

    def __init__(self, source: Bytes, out: Bytes) -> None:
        self._source, self._out = source, out
        self._slot_bytes = source.shape[1]
        # Without argument types a call costs least: pointers and sizes go in as ready-made c_void_p and c_size_t.
        self._memmove = ctypes.memmove

    def plan(self, slots: Ints) -> list[tuple[int, int, int]]:
        """(to, from, bytes) of each run of `slots`."""
        starts = np.concatenate(([0], np.flatnonzero(np.diff(slots) != 1) + 1))
        lengths = np.diff(np.append(starts, len(slots)))
        source, target, size = self._source.ctypes.data, self._out.ctypes.data, self._slot_bytes
        return [
            (target + at * size, source + int(slots[at]) * size, n * size)
            for at, n in zip(starts.tolist(), lengths.tolist(), strict=True)
        ]

    def runs(self, plan: list[tuple[int, int, int]]) -> None:
        memmove = self._memmove
        for to, source, size in plan:
            memmove(to, source, size)

    def gather(self, slots: Ints) -> None:
        np.take(self._source, slots, axis=0, out=self._out[: len(slots)], mode="clip")


@contextlib.contextmanager
def redis_server() -> Iterator[redis.Redis | None]:
    """A Redis of our own on loopback without persistence; None where redis-server or redis-py is not installed."""
    program = shutil.which("redis-server")
    try:
        import redis
    except ImportError:
        program = None
    if program is None:
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="kvstore-bench-") as folder:
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        server = subprocess.Popen([*command, "--dir", folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = redis.Redis(host="127.0.0.1", port=port)
        try:
            _wait_for(client, server)
            yield client
        finally:
            client.close()
            server.terminate()
            server.wait(10)


def describe_redis(client: redis.Redis) -> str:
    """Versions of server, client and parser, as measured."""
    import redis

    info: Any = client.info("server")
    try:
        import hiredis
    except ImportError:
        parser = "no hiredis"
    else:
        parser = f"hiredis {hiredis.__version__}"
    return f"Redis {info['redis_version']} over TCP, redis-py {redis.__version__}, {parser}"


def _wait_for(client: redis.Redis, server: subprocess.Popen[bytes]) -> None:
    import redis

    for _ in range(200):
        if server.poll() is not None:
            break
        try:
            client.ping()
            return
        except redis.ConnectionError:
            time.sleep(0.02)
    raise RuntimeError("redis-server did not start")
