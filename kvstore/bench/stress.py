"""`kvstore bench stress`: readers in other processes against a shard that recycles, overwrites and damages slots.

The truth is in the bytes: every word of a block is a function of its key, slot and generation. A reader that accepts a
copy whose words are not those of the location that it asked for has accepted wrong bytes. With `--no-generation` or
`--no-sums` one of the reader's checks is left out, and the run must find wrong bytes: so it can fail.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from kvstore.arena import Arena, Memory
from kvstore.checks import Verdict, judge
from kvstore.header import HEADER_BYTES, Bytes, sums
from kvstore.index import Index
from kvstore.keys import Keys
from kvstore.layout import Layout
from kvstore.pool import LEASE_GRACE_MS, Pool

Words = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.int64]

HOT_KEYS = 100
_BATCH = 32
_POOL_SLOTS = 192
_REQUEST = struct.Struct("<I")
_GRANT = struct.Struct("<qQq")
_LEASE_MS = 30
_READER_MARGIN_MS = 5


@dataclass
class Counts:
    """What readers saw. `wrong` and `lost_leases` must be 0; the others say what the checks caught."""

    reads: int = 0
    accepted: int = 0
    recycled: int = 0
    torn: int = 0
    damaged: int = 0
    absent: int = 0
    leased_reads: int = 0
    lost_leases: int = 0
    wrong: int = 0

    def add(self, other: Counts) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


def layout() -> Layout:
    """Blocks of 4 KiB: long enough to be torn, short enough for millions of reads."""
    return Layout("stress", head_dim=64, block_tokens=16)


def hot_keys() -> Keys:
    return np.random.default_rng(7).integers(1, 2**63, (HOT_KEYS, 4)).astype(np.uint64)


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def truth(keys: Keys, slots: Slots, generations: Words) -> Words:
    """The word that fills a block of this key, in this slot, with this generation."""
    with np.errstate(over="ignore"):
        place = generations * np.uint64(0x9E3779B97F4A7C15) + slots.astype(np.uint64) * np.uint64(0x85EBCA77C2B2AE63)
        return np.asarray(keys[:, 0] ^ place, np.uint64)


class Writer:
    """The shard's part: new versions, removals, evictions, flipped bits, leases on request."""

    def __init__(self, seed: int) -> None:
        shape = layout()
        self.arena = Arena.create("kv-stress", _POOL_SLOTS, shape.slot_bytes, shape.block_bytes, pool=True)
        self.pool = Pool(self.arena, Index.create(_POOL_SLOTS), seed=seed)
        self.writes = 0
        self.flips = 0
        self.evicted = 0
        self._random = np.random.default_rng(seed)
        self._hot = hot_keys()
        self._cold = 0

    def step(self) -> None:
        """One change."""
        self.pool.sweep(now_ms())
        dice = self._random.random()
        if dice < 0.70:
            self._write(self._hot[self._random.integers(0, HOT_KEYS, 1)])
        elif dice < 0.80:
            self._remove(self._hot[np.unique(self._random.integers(0, HOT_KEYS, 3))])
        elif dice < 0.97:
            self._cold += 1
            self._write(np.asarray([[self._cold, 1, 2, i] for i in range(8)], np.uint64))
        else:
            self._flip()
        self.evicted += sum(len(gone.keys) for gone in self.pool.drain_evicted())
        self.pool.drain_reuse_gaps_ms()

    def grant(self, key: int) -> tuple[int, int, int]:
        """A lease on hot key number `key`: slot (−1: absent), generation, end."""
        slots = self.pool.find(self._hot[key : key + 1])
        if slots[0] < 0:
            return -1, 0, 0
        until = now_ms() + _LEASE_MS
        self.pool.lease(slots, until)
        return int(slots[0]), int(self.pool.generations(slots)[0]), until

    def _write(self, keys: Keys) -> None:
        pool, n = self.pool, len(keys)
        old = pool.find(keys)
        new = pool.reserve(n, now_ms=now_ms())
        words = truth(keys, new, pool.generations(new) + np.uint64(1))
        data = self.arena.data
        for slot, word in zip(new.tolist(), words.tolist(), strict=True):
            block = data[slot].view(np.uint64)
            half = len(block) // 2
            block[:half] = word
            if self._random.random() < 0.05:
                os.sched_yield()
            block[half:] = word
        self.writes += n
        clock = np.full(n, self.writes, np.uint64)
        chains, valid = np.zeros((n, 24), np.uint8), np.full(n, 16, np.int64)
        checks = sums(data[new])
        if (old >= 0).all():
            pool.replace(old, new, keys, clock, valid, chains, checks, now_ms=now_ms())
        else:
            pool.publish(new, keys, clock, valid, chains, checks, now_ms=now_ms())

    def _remove(self, keys: Keys) -> None:
        slots = self.pool.find(keys)
        self.pool.remove(slots[slots >= 0])

    def _flip(self) -> None:
        slots = self.pool.find(self._hot)
        slots = slots[slots >= 0]
        if len(slots):
            block = self.arena.data[int(self._random.choice(slots))]
            block[self._random.integers(0, len(block))] ^= np.uint8(1 << int(self._random.integers(0, 8)))
            self.flips += 1


class Reader:
    """Another process: finds in the shared index, copies, checks, and compares what it believes with the truth."""

    def __init__(self, arena: Arena, index: Index, lessor: socket.socket, *, generation: bool, verify: bool) -> None:
        self.counts = Counts()
        self._arena = arena
        self._index = index
        self._lessor = lessor
        self._generation = generation
        self._verify = verify
        self._hot = hot_keys()
        self._copy = np.empty((_BATCH, arena.slot_bytes), np.uint8)
        self._random = np.random.default_rng(os.getpid())

    def run(self, reads: int) -> Counts:
        while self.counts.reads < reads:
            if self._random.random() < 0.02:
                self._leased()
            else:
                self._unleased()
        return self.counts

    def _unleased(self) -> None:
        keys = self._hot[self._random.integers(0, HOT_KEYS, _BATCH)]
        slots, generations = self._index.find(keys)
        here = slots >= 0
        self.counts.absent += int((~here).sum())
        keys, slots, generations = keys[here], slots[here], generations[here]
        if self._random.random() < 0.1:
            time.sleep(200e-6)
        self._read(keys, slots, generations)

    def _read(self, keys: Keys, slots: Slots, generations: Words) -> npt.NDArray[np.int8]:
        """One transfer each, header and data; verdicts."""
        copy = self._copy[: len(slots)]
        np.take(self._arena.slots, slots, axis=0, out=copy, mode="clip")
        verdicts = self._judge(copy, keys, generations)
        counts = self.counts
        counts.reads += len(slots)
        torn = np.flatnonzero(verdicts == Verdict.TORN)
        for row in torn.tolist():
            self._again(row, keys, slots, generations, verdicts)
        counts.recycled += int((verdicts == Verdict.RECYCLED).sum())
        believed = np.flatnonzero(verdicts == Verdict.OK)
        counts.accepted += len(believed)
        words = self._data(copy[believed]).view(np.uint64)
        expected = truth(keys[believed], slots[believed], generations[believed])
        counts.wrong += int((words != expected[:, None]).any(axis=1).sum())
        return verdicts

    def _again(self, row: int, keys: Keys, slots: Slots, generations: Words, verdicts: npt.NDArray[np.int8]) -> None:
        """A second look tells a torn copy from damaged bytes."""
        at = slice(row, row + 1)
        np.take(self._arena.slots, slots[at], axis=0, out=self._copy[at], mode="clip")
        verdicts[row] = self._judge(self._copy[at], keys[at], generations[at])[0]
        if verdicts[row] == Verdict.TORN:
            self.counts.damaged += 1
        else:
            self.counts.torn += 1

    def _judge(self, copy: Bytes, keys: Keys, generations: Words) -> npt.NDArray[np.int8]:
        if not self._generation:
            generations = self._arena_generations(copy)
        return judge(copy, keys, generations, self._arena.block_bytes, verify=self._verify)

    @staticmethod
    def _arena_generations(copy: Bytes) -> Words:
        return np.ascontiguousarray(copy[:, 32:40]).view(np.uint64)[:, 0]

    def _data(self, copy: Bytes) -> Bytes:
        return np.ascontiguousarray(copy[:, HEADER_BYTES : HEADER_BYTES + self._arena.block_bytes])

    def _leased(self) -> None:
        """Ask for a lease, then read that location without asking again until our own clock ends it."""
        key = int(self._random.integers(0, HOT_KEYS))
        self._lessor.sendall(_REQUEST.pack(key))
        answer = self._lessor.recv(_GRANT.size, socket.MSG_WAITALL)
        if len(answer) < _GRANT.size:
            raise SystemExit(0)
        slot, generation, until = _GRANT.unpack(answer)
        if slot < 0:
            self.counts.absent += 1
            return
        keys = self._hot[key : key + 1]
        slots, generations = np.asarray([slot]), np.asarray([generation], np.uint64)
        for _ in range(50):
            if now_ms() >= until - _READER_MARGIN_MS:
                break
            verdict = self._read(keys, slots, generations)[0]
            # The lease may have ended while this process was not running: then the copy proves nothing.
            if now_ms() < until + LEASE_GRACE_MS:
                self.counts.leased_reads += 1
                self.counts.lost_leases += int(verdict == Verdict.RECYCLED)


def _serve(writer: Writer, lessors: list[socket.socket], children: list[subprocess.Popen[bytes]]) -> None:
    """Write and lease until every reader is done."""
    by_fd = {lessor.fileno(): lessor for lessor in lessors}
    asking = select.poll()
    for fd in by_fd:
        asking.register(fd, select.POLLIN)
    while any(child.poll() is None for child in children):
        for _ in range(32):
            writer.step()
            for fd, _ in asking.poll(0):
                lessor = by_fd[fd]
                request = lessor.recv(_REQUEST.size, socket.MSG_WAITALL)
                if not request:
                    asking.unregister(fd)
                    continue
                lessor.sendall(_GRANT.pack(*writer.grant(_REQUEST.unpack(request)[0])))


def stress(reads: int, readers: int = 1, *, generation: bool = True, verify: bool = True, seed: int = 0) -> Counts:
    """Run it; `reads` are split over `readers` processes."""
    writer = Writer(seed)
    fds = writer.pool.arena.memory.fd, writer.pool.index.memory.fd
    lessors: list[socket.socket] = []
    children: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(readers):
            ours, theirs = socket.socketpair()
            lessors.append(ours)
            argv = [sys.executable, "-m", "kvstore.bench.stress", "--reader", *(str(fd) for fd in fds)]
            argv += [str(theirs.fileno()), str(-(-reads // readers)), str(int(generation)), str(int(verify))]
            children.append(subprocess.Popen(argv, stdout=subprocess.PIPE, pass_fds=(*fds, theirs.fileno())))
            theirs.close()
        _serve(writer, list(lessors), children)
        total = Counts()
        for child in children:
            output, _ = child.communicate()
            if child.returncode:
                raise RuntimeError(f"a reader ended with {child.returncode}")
            total.add(Counts(**json.loads(output)))
    finally:
        for child in children:
            child.kill()
            child.wait()
        for lessor in lessors:
            lessor.close()
    print(
        f"writer: {writer.writes} blocks written, {writer.evicted} evicted, {writer.flips} bits flipped",
        file=sys.stderr,
    )
    return total


def _reader(argv: list[str]) -> int:
    arena_fd, index_fd, lessor_fd, reads, generation, verify = (int(word) for word in argv)
    shape = layout()
    arena = Arena(Memory.adopt(arena_fd), shape.slot_bytes, shape.block_bytes)
    index = Index.attach(Memory.adopt(index_fd))
    reader = Reader(arena, index, socket.socket(fileno=lessor_fd), generation=bool(generation), verify=bool(verify))
    print(json.dumps(asdict(reader.run(reads))))
    return 0


def run(argv: list[str]) -> int:
    """Exit code 0 when no wrong byte was accepted and no lease was broken, else 1."""
    parser = argparse.ArgumentParser(prog="kvstore bench stress", description=__doc__)
    parser.add_argument("--reads", type=int, default=10_000_000)
    parser.add_argument("--readers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-generation", action="store_true", help="leave out the check of the generation")
    parser.add_argument("--no-sums", action="store_true", help="leave out the check of the sums")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    begun = time.perf_counter()
    counts = stress(
        options.reads,
        options.readers,
        generation=not options.no_generation,
        verify=not options.no_sums,
        seed=options.seed,
    )
    if options.json:
        print(json.dumps(asdict(counts)))
    else:
        print(
            f"{counts.reads} reads in {time.perf_counter() - begun:.1f} s: "
            + ", ".join(f"{name} {value}" for name, value in asdict(counts).items() if name != "reads")
        )
    return int(counts.wrong > 0 or counts.lost_leases > 0)


if __name__ == "__main__":
    sys.exit(_reader(sys.argv[2:]) if sys.argv[1:2] == ["--reader"] else run(sys.argv[1:]))
