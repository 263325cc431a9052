"""In guest b: puts blocks into a store in guest a and reads them again and again, checking every byte.

``client.py TARGET ORDERS`` goes through the files of a folder in the order of their names: each is a JSON object with
the name of a run and its seconds, and ``{}`` is the end. A run's result is written to /out. A datagram (UDP 7001) is a
notice of what happens in guest a; it is stamped by this guest's clock, with which all is timed.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from kvstore.errors import StoreError
from kvstore.keys import block_keys
from kvstore.layout import Layout
from kvstore.sync import SyncClient

LAYOUT = Layout("roce", heads=4, head_dim=64, block_tokens=16, window_tokens=512)
"""16 KiB a block, 32 blocks a window."""
LEASE_MS = 6_000
PUT_EVERY = 8


def keys_of(n: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return block_keys([rng.bytes(24) for _ in range(n)], 0, 0)


def blocks_of(keys: Any) -> Any:
    """Bytes that say whose they are."""
    place = np.arange(LAYOUT.block_bytes // 8, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = (keys[:, :1] ^ keys[:, 3:4]) * np.uint64(0x9E3779B97F4A7C15) + place[None]
    return mixed.view(np.uint8)


class Loop:
    """Operations one after another; ``rows`` are (start, seconds, operation, outcome)."""

    def __init__(self, target: str, blocks: int, deadline_ms: int, transport: str) -> None:
        self.deadline_ms = deadline_ms
        self.all = keys_of(2 * blocks, 1)
        self.keys = self.all[::2]  # every other block: each is a descriptor, and so a request, of its own
        self.data = blocks_of(self.keys)
        self.rows: list[tuple[float, float, str, str]] = []
        self.notices: list[tuple[str, float]] = []
        self.wrong = 0
        self.says: dict[str, str] = {}
        self.located: Any = None
        self._until = 0.0
        self._puts = 1
        self._heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._heard.bind(("0.0.0.0", 7001))
        self._heard.setblocking(False)
        self.client = self._connected(target, transport)

    def _connected(self, target: str, transport: str) -> SyncClient:
        end = time.monotonic() + 600
        while True:
            try:
                return SyncClient(target, LAYOUT, deadline_ms=30_000, transport=transport, staging_blocks=256)
            except StoreError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)

    def prepare(self) -> None:
        end = time.monotonic() + 300
        while True:
            try:
                self.client.put(self.all, blocks_of(self.all), deadline_ms=30_000)
                return
            except StoreError:
                if time.monotonic() > end:
                    raise

    def run(self, seconds: float) -> None:
        self.rows, self.notices, self.wrong, self.says = [], [], 0, {}
        start = time.monotonic()
        turn = 0
        while time.monotonic() - start < seconds:
            turn += 1
            self._timed(start, "get", self._get)
            self._timed(start, "read", self._read)
            if turn % PUT_EVERY == 0:
                self._timed(start, "put", self._put)
            if len(self.rows) >= 2 and all(row[3] not in ("ok", "miss") and row[1] < 0.05 for row in self.rows[-2:]):
                time.sleep(0.1)  # refused at once: no busy loop against it

    def _timed(self, start: float, operation: str, what: Callable[[], str]) -> None:
        began = time.monotonic()
        try:
            outcome = what()
        except StoreError as error:
            outcome = type(error).__name__
            self.says.setdefault(outcome, str(error))
        took = time.monotonic() - began
        self.rows.append((began - start, took, operation, outcome))
        while True:
            try:
                self.notices.append((self._heard.recv(64).decode().strip(), time.monotonic() - start))
            except BlockingIOError:
                return

    def _get(self) -> str:
        found = self.client.get(self.keys, deadline_ms=self.deadline_ms)
        return self._judged(found.found, found.data)

    def _read(self) -> str:
        """A known place under its lease: needs no answer of the shard."""
        end = time.monotonic() + self.deadline_ms / 1000
        if self.located is None or time.monotonic() > self._until:
            self._until = time.monotonic() + LEASE_MS / 1000 * 0.9
            self.located = None
            self.located = self.client.lookup(self.keys, lease_ms=LEASE_MS, deadline_ms=self.deadline_ms)
        found = self.client.get(self.located, deadline_ms=left_ms(end))
        return self._judged(found.found, found.data)

    def _put(self) -> str:
        self._puts += 1
        end = time.monotonic() + self.deadline_ms / 1000
        keys = keys_of(8, self._puts)
        self.client.put(keys, blocks_of(keys), deadline_ms=self.deadline_ms)
        found = self.client.get(keys, deadline_ms=left_ms(end))
        ok = found.found
        self.wrong += int((np.asarray(found.data)[ok] != blocks_of(keys)[ok]).any())
        return "ok" if ok.all() else "miss"

    def _judged(self, found: Any, data: Any) -> str:
        if (np.asarray(data)[found] != self.data[found]).any():
            self.wrong += 1
            return "WRONG"
        return "ok" if found.all() else "miss"


def left_ms(end: float) -> int:
    return max(1, round((end - time.monotonic()) * 1000))


def quantile(values: list[float], share: float) -> float | None:
    return round(sorted(values)[min(len(values) - 1, int(len(values) * share))] * 1e3, 1) if values else None


def summary(loop: Loop) -> dict[str, Any]:
    """Counts and times by operation, and what came first after the first notice."""
    out: dict[str, Any] = {"wrong": loop.wrong, "notices": [(what, round(at, 2)) for what, at in loop.notices]}
    out["says"] = loop.says
    at = loop.notices[0][1] if loop.notices else None
    for operation in ("get", "read", "put"):
        rows = [row for row in loop.rows if row[2] == operation]
        good = [row for row in rows if row[3] == "ok"]
        bad = [row for row in rows if row[3] != "ok"]
        ends = [row[0] + row[1] for row in good]
        gap = max((later - earlier for earlier, later in pairwise(ends)), default=0.0)
        said: dict[str, Any] = {"ok": len(good), "p50_ms": quantile([row[1] for row in good], 0.5)}
        said["p99_ms"] = quantile([row[1] for row in good], 0.99)
        said["longest_gap_s"] = round(gap, 2)
        said["errors"] = {name: sum(row[3] == name for row in bad) for name in {row[3] for row in bad}}
        said["waited_s"] = round(max((row[1] for row in bad), default=0.0), 2)
        if at is not None:
            first_bad = next((row for row in bad if row[0] + row[1] > at), None)
            first_good = next((row for row in good if row[0] > at), None)
            said["ok_after"] = sum(row[0] > at for row in good)
            if first_bad is not None:
                said["first_error"] = [first_bad[3], round(first_bad[0] + first_bad[1] - at, 2)]
            if first_good is not None:
                said["first_ok_s"] = round(first_good[0] + first_good[1] - at, 2)
        out[operation] = said
    moved = sum(row[2] != "put" and row[3] == "ok" for row in loop.rows) * loop.data.nbytes
    spent = sum(row[1] for row in loop.rows if row[2] != "put" and row[3] == "ok")
    out["MBps"] = round(moved / spent / 1e6, 2) if spent else None
    return out


def next_order(folder: Path, done: set[str]) -> Any:
    while True:
        for path in sorted(folder.glob("*.json")):
            if path.name not in done:
                done.add(path.name)
                return json.loads(path.read_text())
        time.sleep(0.3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("orders", type=Path)
    parser.add_argument("--out", type=Path, default=Path("/out"))
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--deadline", type=int, default=8_000, help="of each operation, in milliseconds")
    parser.add_argument("--transport", default="nixl")
    given = parser.parse_args()
    loop = Loop(given.target, given.blocks, given.deadline, given.transport)
    done: set[str] = set()
    while order := next_order(given.orders, done):
        name = order["run"]
        loop.prepare()
        (given.out / f"{name}.started").touch()
        loop.run(order["seconds"])
        part = given.out / f"{name}.part"
        part.write_text(json.dumps(summary(loop)) + "\n")
        part.rename(given.out / f"{name}.json")


if __name__ == "__main__":
    main()
    import os

    os._exit(0)  # what hangs in a library at exit is not what is measured here
