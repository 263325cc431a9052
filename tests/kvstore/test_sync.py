"""The client for plain code ends well: with calls under way, from several threads, with sessions open, after a fork."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from kvstore.client import SyncClient
from kvstore.cluster import LocalCluster
from kvstore.errors import ShardUnavailable
from tests.kvstore.process_rig import LAYOUT, ROOT, blocks_for, some_keys

KEYS = some_keys(4, seed=1)
LONG_MS = 600_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1, LAYOUT, 64) as running:
        yield running


WAITING: dict[str, Callable[[SyncClient], object]] = {
    "lookup": lambda client: client.lookup(KEYS, lease_ms=5, deadline_ms=LONG_MS),
    "put": lambda client: client.put(KEYS, blocks_for(KEYS), deadline_ms=LONG_MS),
    "session": lambda client: client.open_session("x", deadline_ms=LONG_MS),
    "get": lambda client: client.get(KEYS, min_clock=1 << 40, deadline_ms=LONG_MS),
    "remove": lambda client: client.remove(KEYS, deadline_ms=LONG_MS),
}


def test_a_close_ends_what_other_threads_wait_for(cluster: LocalCluster) -> None:
    """The shard is stopped, and the deadlines are far away."""
    client = SyncClient(cluster.targets, LAYOUT)
    client.put(KEYS, blocks_for(KEYS))
    ended: dict[str, BaseException] = {}

    def work(name: str) -> None:
        try:
            WAITING[name](client)
        except BaseException as error:
            ended[name] = error

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in WAITING]
    cluster.kill(0, signal.SIGSTOP)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(0.2)
        assert not ended, "nothing answers yet"
        client.close()
        for thread in threads:
            thread.join(60)
    finally:
        cluster.kill(0, signal.SIGCONT)
    assert {name: type(error) for name, error in ended.items()} == dict.fromkeys(WAITING, ShardUnavailable)


def test_many_threads_may_close_it_at_once(cluster: LocalCluster) -> None:
    for turn in range(5):
        client = SyncClient(cluster.targets, LAYOUT)
        begin = threading.Barrier(4)

        def close(client: SyncClient = client, begin: threading.Barrier = begin) -> None:
            begin.wait()
            client.close()

        def ask(client: SyncClient = client, begin: threading.Barrier = begin) -> None:
            begin.wait()
            with contextlib.suppress(ShardUnavailable):
                while True:
                    client.lookup(KEYS, lease_ms=1)

        threads = [threading.Thread(target=work, daemon=True) for work in (close, close, close, ask)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), f"in try {turn}"
        client.close()
        with pytest.raises(ShardUnavailable, match="closed"):
            client.lookup(KEYS, lease_ms=1)


def ran(code: str, targets: str) -> subprocess.CompletedProcess[str]:
    head = "import asyncio, os, sys\nfrom kvstore.client import Client, SyncClient\nfrom kvstore.errors import *\n"
    head += "from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys\n"
    return subprocess.run(
        [sys.executable, "-c", head + code, targets], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )


OPEN_SESSIONS = """
client = SyncClient(sys.argv[1], LAYOUT)
session = client.open_session("x")
client.close()
session.release()

async def main():
    client = await Client.connect(sys.argv[1], LAYOUT)
    session = await client.open_session("x")
    await client.close()
    print(len(asyncio.all_tasks()))

asyncio.run(main())
"""


def test_a_client_that_ends_with_a_session_open_says_nothing(cluster: LocalCluster) -> None:
    done = ran(OPEN_SESSIONS, cluster.targets)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


FORK = """
parent = SyncClient(sys.argv[1], LAYOUT)
child = os.fork()
if not child:
    said = []
    for attempt in (lambda: SyncClient(sys.argv[1], LAYOUT), lambda: parent.lookup(some_keys(1, 1), lease_ms=1)):
        try:
            attempt()
        except BadRequest as error:
            said.append("spawn" in str(error))
    parent.close()
    os._exit(7 if said == [True, True] else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
parent.put(some_keys(1, 1), blocks_for(some_keys(1, 1)))
parent.close()
"""


def test_a_client_in_a_fork_is_refused_and_the_parents_goes_on(cluster: LocalCluster) -> None:
    done = ran(FORK, cluster.targets)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert "Check failed" not in done.stderr
