"""The same proof through `kvstore serve`: puts and removals by a client, kill -9 of the shard, a disk that forgets."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt

from kvstore.errors import StoreError
from kvstore.layout import Layout
from kvstore.messages import Durability
from kvstore.sync import SyncClient
from tests.kvstore.log.crash import ROOT, Key, Tally
from tests.kvstore.shims.forgetful import ForgetfulDisk

LAYOUT = Layout("crash", heads=1, head_dim=32)
BLOCKS = "65536"
"""Room for all of a long run: what is evicted may be missing, and the run does not know what was."""
THREADS = 4
DEADLINE_MS = 1500
_BOOT = "import sys; from kvstore.cli import main; sys.exit(main(sys.argv[1:]))"
_EARLY = """
from kvstore.log.group import Flusher
begin = Flusher.start
def start(flusher):
    flusher.acknowledge_early = True
    begin(flusher)
Flusher.start = start
"""


def content(key: Key) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(key).integers(0, 256, LAYOUT.block_bytes, np.uint8)


def columns(keys: list[Key]) -> npt.NDArray[np.uint64]:
    """Content-addressed keys are digests: 24 bytes, then layer, head group and block index."""
    digests = (hashlib.blake2b(repr(key).encode(), digest_size=24).digest() + bytes(8) for key in keys)
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 4)


class ServeCrashRun:
    """Rounds on one log directory; the client lives in this process, the shard in its own."""

    def __init__(self, root: Path, seed: int, *, early: bool = False, delay_ms: int = 0, leak: int = 20) -> None:
        self.disk = ForgetfulDisk(root)
        self.run_dir = root / "run"
        self.run_dir.mkdir(mode=0o700)
        self.environment = self.disk.environment(leak=leak, delay_ms=delay_ms)
        self.random = Random(seed)
        self.boot = (_EARLY if early else "") + _BOOT
        self.tally = Tally()
        self.sure: set[Key] = set()
        """Acknowledged and no removal begun."""
        self.unsure: set[Key] = set()
        self.gone: set[Key] = set()
        """Removal acknowledged."""
        self._enough = threading.Event()
        self._lock = threading.Lock()
        self._wanted = 0

    def start(self) -> tuple[subprocess.Popen[bytes], str]:
        """A shard that serves, and its address."""
        ready, tell = os.pipe()
        command = [sys.executable, "-c", self.boot, "serve", "--layout", LAYOUT.as_json(), "--blocks", BLOCKS]
        command += ["--durability", "log+sync", "--log-dir", str(self.disk.live), "--run-dir", str(self.run_dir)]
        command += ["--listen", "127.0.0.1:0", "--metrics-port", "-1", "--ready-fd", str(tell)]
        process = subprocess.Popen(
            command, env=self.environment, cwd=ROOT, pass_fds=[tell], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        os.close(tell)
        with open(ready, "rb") as pipe:
            line = pipe.readline()
        if not line:
            _, said = process.communicate(timeout=10)
            raise RuntimeError(f"the shard did not start: {said.decode()}")
        return process, str(json.loads(line)["address"])

    def kill_once(self, acknowledgements: int) -> None:
        self.tally.kills += 1
        self._wanted = self.tally.acknowledged + acknowledgements
        self._enough.clear()
        process, address = self.start()
        with process, SyncClient([address], LAYOUT, deadline_ms=DEADLINE_MS) as client:
            writers = [threading.Thread(target=self._write, args=(client, thread)) for thread in range(THREADS)]
            for writer in writers:
                writer.start()
            self._enough.wait(60)
            process.kill()
            for writer in writers:
                writer.join()
        self.disk.power_cut()
        self._check()

    def _write(self, client: SyncClient, thread: int) -> None:
        random = Random(f"{self.tally.kills}/{thread}")
        mine: list[Key] = []
        for number in range(1, 1_000_000):
            fresh = [(self.tally.kills, thread, number, block) for block in range(random.randint(1, 4))]
            try:
                with self._lock:
                    self.unsure.update(fresh)
                data = np.stack([content(key) for key in fresh])
                client.put(columns(fresh), data, durability=Durability.LOG_SYNC)
                self._acknowledged(sure=fresh)
                mine += fresh
                if random.random() < 0.2:
                    victim = mine.pop(random.randrange(len(mine)))
                    with self._lock:
                        self.sure.discard(victim)
                        self.unsure.add(victim)
                    client.remove(columns([victim]), durability=Durability.LOG_SYNC)
                    self._acknowledged(gone=[victim])
            except StoreError:
                return  # the shard is gone

    def _acknowledged(self, sure: list[Key] | None = None, gone: list[Key] | None = None) -> None:
        with self._lock:
            self.unsure.difference_update([*(sure or []), *(gone or [])])
            self.sure.update(sure or [])
            self.gone.update(gone or [])
            self.tally.acknowledged += 1
            if self.tally.acknowledged >= self._wanted:
                self._enough.set()

    def _check(self) -> None:
        """On the recovered shard: all that is sure is there and equal; what is gone is not; nothing is half there."""
        process, address = self.start()
        with process, SyncClient([address], LAYOUT, deadline_ms=DEADLINE_MS) as client:
            for name, keys in (
                ("sure", sorted(self.sure)),
                ("unsure", sorted(self.unsure)),
                ("gone", sorted(self.gone)),
            ):
                if not keys:
                    continue
                found = client.get(columns(keys), deadline_ms=30_000)
                there = found.found
                self.tally.recovered += int(there.sum())
                for row, key in enumerate(keys):
                    if there[row] and not np.array_equal(found.data[row], content(key)):
                        self._violated(f"{key}: other bytes than were put")
                    if bool(there[row]) != (name == "sure") and name != "unsure":
                        self._violated(f"{key} is {name} and {'there' if there[row] else 'missing'}")
                if name == "unsure":
                    kept = {key for row, key in enumerate(keys) if there[row]}
                    self.sure |= kept
            self.unsure.clear()
            process.terminate()
            process.wait(30)
        self.disk.remember()

    def _violated(self, text: str) -> None:
        self.tally.violations.append(f"kill {self.tally.kills}: {text}")

    def run(self, kills: int, least: int = 5, most: int = 120) -> Tally:
        for _ in range(kills):
            self.kill_once(self.random.randint(least, most))
        return self.tally
