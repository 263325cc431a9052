"""The process that gets killed: several threads write to a log and say, line by line, what they mean to do and what was
acknowledged.

Lines: `I clock kind key,key… valid` before an append, `A clock` after its acknowledgement. A block's bytes follow from
its key and, for whole blocks, from the clock that it was put with.
"""

from __future__ import annotations

import os
import sys
import threading
from itertools import count
from random import Random

import numpy as np
import numpy.typing as npt

from kvstore.log import Batch, BlockShape, Durability, Kind, Log, LogConfig, appends, drops, puts

SHAPE = BlockShape(2, 16, 64)
THREADS = 4
WHOLE, TAIL = 0, 1


def config(durability: Durability = Durability.LOG_SYNC) -> LogConfig:
    """Small segments, so that a short run truncates the log."""
    return LogConfig(SHAPE, durability, segment_bytes=1 << 17, budget_segments=5, checkpoint_segments=3)


def key_of(round_number: int, thread: int, number: int, tail: int) -> tuple[int, int, int, int]:
    return (round_number, thread, number, tail)


def content(key: tuple[int, ...], clock: int) -> npt.NDArray[np.uint8]:
    """The bytes of a block; a tail's do not depend on the clock (give 0)."""
    return np.random.default_rng([*key, clock]).integers(0, 256, SHAPE.block_bytes, np.uint8)


class Writer:
    """One thread's workload."""

    def __init__(self, log: Log, round_number: int, thread: int, clock: count[int], old: list[tuple[int, ...]]) -> None:
        self.log = log
        self.round = round_number
        self.thread = thread
        self.clock = clock
        self.random = Random(f"{round_number}/{thread}/{os.getpid()}")
        self.held: list[tuple[int, ...]] = list(old)
        self.number = 0
        self.tail: tuple[int, ...] | None = None
        self.valid = 0

    def run(self) -> None:
        while True:
            choice = self.random.random()
            if choice < 0.35:
                self.extend()
            elif choice < 0.45 and len(self.held) > 2:
                self.store([self.random.choice(self.held)])
            else:
                self.store([self.fresh(WHOLE) for _ in range(self.random.randint(1, 4))])
            while len(self.held) > 40:
                self.drop()

    def fresh(self, tail: int) -> tuple[int, ...]:
        self.number += 1
        return key_of(self.round, self.thread, self.number, tail)

    def store(self, keys: list[tuple[int, ...]]) -> None:
        keys = [key for key in keys if key[3] == WHOLE]
        if not keys:
            return
        clock = next(self.clock)
        self.held += [key for key in keys if key not in self.held]
        blocks = [content(key, clock) for key in keys]
        self.commit(clock, "PUT", keys, 16, puts(keys, blocks, clock=clock, valid=16, session=self.thread + 1))

    def extend(self) -> None:
        if self.tail is None or self.valid == 16:
            self.tail, self.valid = self.fresh(TAIL), 0
            self.held.append(self.tail)
        valid = min(16, self.valid + self.random.randint(1, 5))
        clock = next(self.clock)
        whole = content(self.tail, 0)
        packed = SHAPE.gather(whole, self.valid, valid)
        sums = SHAPE.sum_of(whole, valid)
        batch = appends(self.tail, [packed], clock=clock, first=self.valid, valid=valid, block_sums=sums)
        self.commit(clock, "APPEND", [self.tail], valid, batch)
        self.valid = valid

    def drop(self) -> None:
        key = self.held.pop(0)
        if key == self.tail:
            self.tail = None
        clock = next(self.clock)
        kind = self.random.choice([Kind.EVICT, Kind.REMOVE, Kind.EXPIRE])
        self.commit(clock, kind.name, [key], 0, drops(key, kind, clock=clock))

    def commit(self, clock: int, kind: str, keys: list[tuple[int, ...]], valid: int, batch: Batch) -> None:
        names = ",".join(".".join(map(str, key)) for key in keys)
        os.write(1, f"I {clock} {kind} {names} {valid}\n".encode())
        self.log.wait(self.log.append(batch), 30)
        os.write(1, f"A {clock}\n".encode())


def main(directory: str, round_number: int, *, early: bool) -> None:
    log = Log(directory, config())
    log._flusher.acknowledge_early = early
    old = [tuple(np.frombuffer(entry.key, np.uint64).tolist()) for entry in log.recovered()]
    clock = count(log.last_clock + 1)
    os.write(1, b"R\n")
    shares = [old[thread::THREADS] for thread in range(THREADS)]
    writers = [Writer(log, round_number, thread, clock, shares[thread]) for thread in range(THREADS)]
    threads = [threading.Thread(target=writer.run) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), early=sys.argv[3] == "early")
