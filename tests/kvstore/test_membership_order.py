"""While members come, leave and die, nobody sees an older version of a tail after a newer one was acknowledged.

A tail that moves may be lost (KV can be computed again): then it begins anew, with a later clock.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from kvstore.client import SyncClient
from kvstore.cluster import LocalCluster
from kvstore.errors import OwnerLapsed, ShardUnavailable, StoreError, TailConflict
from tests.kvstore.etcd_rig import EtcdServer, needs_etcd
from tests.kvstore.process_rig import LAYOUT, some_keys

pytestmark = [
    needs_etcd,
    pytest.mark.skipif(os.environ.get("KVSCOPE_LONG") != "1", reason="a quarter of a minute: KVSCOPE_LONG=1"),
]
TAILS = 24
WAIT_S = 60.0


class Tails:
    """One writer's tails, and the clock of the last version of each that the store has acknowledged."""

    def __init__(self, target: str) -> None:
        self.keys = some_keys(TAILS, 11)
        self.target = target
        self.acknowledged = [0] * TAILS
        self.stop = threading.Event()
        self.appended = self.begun_anew = self.read = self.epoch = 0
        self.wrong: list[str] = []

    def write(self) -> None:
        rng = np.random.default_rng(1)
        digests = rng.integers(0, 256, (LAYOUT.block_tokens, 24), np.uint8)
        clocks = [0] * TAILS
        words = np.zeros((1, LAYOUT.block_bytes // 8), np.int64)
        with SyncClient(self.target, LAYOUT) as client:
            session = client.open_session("hot")
            follower = client.client.follower
            assert follower is not None
            for turn in range(10**9):
                self.epoch = follower.view.epoch
                if self.stop.is_set():
                    session.release()
                    return
                row = turn % TAILS
                words[:] = turn
                try:
                    answer = client.append(
                        session,
                        self.keys[row : row + 1],
                        words.view(np.uint8),
                        valid=1,
                        digests=digests[:1],
                        expected=clocks[row],
                    )
                except TailConflict:  # it was lost on its way to another home, or is one that was begun elsewhere
                    clocks[row] = 0
                    self.begun_anew += 1
                    self._clear(client, row)
                    continue
                except (ShardUnavailable, OwnerLapsed):  # it died, or left meanwhile: what came of it nobody knows
                    clocks[row] = 0
                    continue
                clocks[row] = self.acknowledged[row] = int(answer.clock[0])
                self.appended += 1

    def _clear(self, client: SyncClient, row: int) -> None:
        with contextlib.suppress(StoreError):
            client.remove(self.keys[row : row + 1])

    def watch(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        newest = [0] * TAILS
        with SyncClient(self.target, LAYOUT) as client:
            out = client.buffer(1)
            while not self.stop.is_set():
                row = int(rng.integers(TAILS))
                least = max(self.acknowledged[row], newest[row])
                try:
                    blocks = client.get(self.keys[row : row + 1], out)
                except ShardUnavailable:
                    continue
                if blocks.found[0]:
                    self.read += 1
                    clock = int(blocks.clock[0])
                    if clock < least:
                        self.wrong.append(f"tail {row}: {clock} was read after {least}")
                    newest[row] = clock

    def guarded(self, work: object, *args: int) -> threading.Thread:
        def run() -> None:
            try:
                work(*args)  # type: ignore[operator]
            except Exception as error:
                self.wrong.append(repr(error))

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def go_on(self, epoch: int, appended: int = 50, read: int = 50) -> None:
        """Wait for so much more in that epoch."""
        end = time.monotonic() + WAIT_S
        while self.epoch < epoch:
            assert not self.wrong, self.wrong[:3]
            assert time.monotonic() < end, f"the writer is in epoch {self.epoch}, not {epoch}"
            time.sleep(0.01)
        goals = self.appended + appended, self.read + read
        while self.appended < goals[0] or self.read < goals[1]:
            assert not self.wrong, self.wrong[:3]
            assert time.monotonic() < end, f"{self.appended} appends, {self.read} reads: {goals} were expected"
            time.sleep(0.01)


def test_versions_never_go_back(tmp_path: Path) -> None:
    def shards(count: int) -> LocalCluster:
        return LocalCluster(count, LAYOUT, 512, etcd=etcd.url, cluster="order", lease="2s")

    with EtcdServer(tmp_path) as etcd, shards(2) as store:
        tails = Tails(etcd.target("order"))
        threads = [tails.guarded(tails.write), tails.guarded(tails.watch, 2)]
        try:
            tails.go_on(1)
            with shards(1):
                tails.go_on(2)
            tails.go_on(3)
            store.kill(0)
            tails.go_on(4)
        finally:
            tails.stop.set()
            for thread in threads:
                thread.join()
        assert tails.wrong == []
        assert tails.begun_anew > 0, "no tail moved: the run proves nothing"
