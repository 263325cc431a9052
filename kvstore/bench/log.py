"""`kvstore bench log`: durable puts, grouped against one flush each, and what the log writes for what it acknowledges.

Writers are tasks of one event loop, as in a shard; each puts one block after the other and waits for it. The arms take
turns in slices of a second or less, so that whatever else the disk does meets all of them. The floor beside them is one
bare pwrite and fdatasync of a block in a preallocated file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore.bench import machine
from kvstore.errors import StoreError
from kvstore.log import Batch, BlockShape, Kind, Log, LogConfig, LogStats, drops, puts

WRITERS = (1, 8, 64)
MIB = 1 << 20
_KEYS_A_WRITER = 64


@dataclass
class Taken:
    """What one arm measured."""

    seconds: list[float] = field(default_factory=list)
    """Each put, from its append to its answer in the loop."""
    elapsed: float = 0.0

    def figures(self) -> dict[str, float]:
        ordered = sorted(self.seconds)
        return {
            "puts": len(ordered),
            "puts_per_second": round(len(ordered) / self.elapsed, 1),
            "p50_s": round(ordered[len(ordered) // 2], 7),
            "p99_s": round(ordered[int(0.99 * (len(ordered) - 1))], 7),
        }


def shape_of(block_bytes: int) -> BlockShape:
    """A block of 16 tokens, K and V."""
    return BlockShape(2, 16, block_bytes // 32)


def _keys(*numbers: int) -> npt.NDArray[np.uint64]:
    column = np.zeros((len(numbers), 4), np.uint64)
    column[:, 3] = numbers
    return column


def _payloads(shape: BlockShape, how_many: int) -> list[npt.NDArray[np.uint8]]:
    return list(np.random.default_rng(1).integers(0, 256, (how_many, shape.block_bytes), np.uint8))


class DurablePuts:
    """The two logs, and writers on one of them at a time."""

    def __init__(self, root: Path, shape: BlockShape) -> None:
        self.shape = shape
        self.blocks = _payloads(shape, 64)
        self.clock = count(1)
        size = max(16 * MIB, 4 * (shape.block_bytes + 4096))
        self.logs = {
            "grouped": Log(root / "grouped", LogConfig(shape, segment_bytes=size)),
            "one flush each": Log(root / "single", LogConfig(shape, segment_bytes=size, group_batches=1, window_us=0)),
        }
        self.floor = os.open(root / "floor", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self.floor, bytes(16 * MIB), 0)
        os.fsync(self.floor)

    async def slice(self, arm: str, writers: int, seconds: float, taken: Taken) -> None:
        """Let `writers` put for about `seconds`."""
        began = time.perf_counter()
        await asyncio.gather(*(self._writer(arm, writer, began + seconds, taken) for writer in range(writers)))
        taken.elapsed += time.perf_counter() - began

    async def _writer(self, arm: str, writer: int, until: float, taken: Taken) -> None:
        log = self.logs[arm]
        for number in count():
            began = time.perf_counter()
            if began >= until:
                return
            clock = next(self.clock)
            key = _keys(writer * _KEYS_A_WRITER + number % _KEYS_A_WRITER)
            await log.commit(puts(key, [self.blocks[number % 64]], clock=clock, valid=16))
            taken.seconds.append(time.perf_counter() - began)

    def bare(self, seconds: float, taken: Taken) -> None:
        """The floor."""
        began = now = time.perf_counter()
        size = self.shape.block_bytes
        for number in count():
            os.pwrite(self.floor, self.blocks[number % 64].data, number % (16 * MIB // size) * size)
            os.fdatasync(self.floor)
            after = time.perf_counter()
            taken.seconds.append(after - now)
            now = after
            if now - began > seconds:
                break
        taken.elapsed += now - began

    def close(self) -> None:
        os.close(self.floor)
        for log in self.logs.values():
            log.close()


def measure_puts(root: Path, block_bytes: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Every arm for `seconds` in all, in `rounds` slices, in a new order each round."""
    bench = DurablePuts(root, shape_of(block_bytes))
    arms = [(arm, writers) for arm in bench.logs for writers in WRITERS]
    taken = {arm: Taken() for arm in [*arms, ("floor", 1)]}
    shuffle = Random(0).shuffle

    async def all_slices() -> None:
        for number in range(-1, rounds):
            order = list(taken)
            shuffle(order)
            for arm in order:
                into = taken[arm] if number >= 0 else Taken()
                if arm[0] == "floor":
                    bench.bare(seconds / rounds, into)
                else:
                    await bench.slice(*arm, seconds / rounds, into)

    try:
        asyncio.run(all_slices())
        group = bench.logs["grouped"].stats.wal_group_records
        mean = group.total / max(1, group.count)
    finally:
        bench.close()
    found: dict[str, Any] = {"floor": taken["floor", 1].figures(), "mean_group_records": round(mean, 2)}
    for arm in bench.logs:
        found[arm] = {str(writers): taken[arm, writers].figures() for writers in WRITERS}
    return found


def measure_amplification(root: Path, block_bytes: int, segment_bytes: int, truncations: int) -> dict[str, Any]:
    """A cache's log: puts of 8 new blocks, before each the eviction of the least recently used ones; a twentieth of the
    blocks is used again as it comes to be evicted, four times. The log's budget is two and a half times the pool."""
    shape = shape_of(block_bytes)
    capacity = 4 * segment_bytes // shape.block_bytes
    stats = LogStats()
    config = LogConfig(shape, segment_bytes=segment_bytes, budget_segments=10)
    blocks, random = _payloads(shape, 64), Random(1)
    uses_left: dict[int, int] = {}
    number, clock = 0, 0
    with Log(root / "amplification", config, stats) as log:
        while log.truncations < truncations or number < 8 * capacity:
            clock += 1
            new = range(number, number + 8)
            number += 8
            uses_left.update((block, 0 if block % 20 else 4) for block in new)
            batches = []
            victims = []
            while len(uses_left) > capacity:
                oldest = next(iter(uses_left))
                uses = uses_left.pop(oldest)
                if uses:
                    uses_left[oldest] = uses - 1
                else:
                    victims.append(oldest)
            if victims:
                batches.append(drops(_keys(*victims), Kind.EVICT, clock=clock))
            batches.append(puts(_keys(*new), random.choices(blocks, k=8), clock=clock, valid=16))
            log.wait(log.append(Batch.joined(*batches)), 60)
        found = {"truncations": log.truncations, "checkpoints": log.checkpoints, "segments": log.segments}
    written, acknowledged = stats.wal_written_bytes, stats.wal_acknowledged_bytes
    return {
        **found,
        "acknowledged_bytes": acknowledged,
        "written_bytes": written,
        "rewritten_bytes": stats.wal_rewritten_bytes,
        "written_over_acknowledged": round(written / acknowledged, 4),
    }


def run(argv: list[str]) -> int:
    """Exit code 0; 1 when the log could not be used; 2 for options that cannot be."""
    parser = argparse.ArgumentParser(prog="kvstore bench log", description=__doc__)
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: the current directory")
    parser.add_argument("--block-bytes", type=int, default=16384)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each of the seven arms")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--truncations", type=int, default=2)
    parser.add_argument("--segment-mib", type=int, default=8, help="segments of the write-amplification run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if options.block_bytes < 32 or options.block_bytes % 32 or options.block_bytes > MIB:
        parser.error("--block-bytes must be a multiple of 32, up to 1048576")
    if not 0 < options.seconds <= 600 or not 1 <= options.rounds <= 1000 or not 1 <= options.truncations <= 1000:
        parser.error("need 0 < --seconds ≤ 600, 1 ≤ --rounds ≤ 1000, 1 ≤ --truncations ≤ 1000")
    if not 2 * options.block_bytes / MIB < options.segment_mib <= 64:
        parser.error("--segment-mib must hold some blocks and be at most 64")
    if options.directory is not None and not options.directory.is_dir():
        parser.error(f"--directory {options.directory} is no directory")
    try:
        with tempfile.TemporaryDirectory(prefix="kvstore-bench-", dir=options.directory or Path.cwd()) as directory:
            facts = machine.facts()
            root = Path(directory)
            found = {
                "block_bytes": options.block_bytes,
                "window_us": 100,
                "puts": measure_puts(root, options.block_bytes, options.seconds, options.rounds),
                "amplification": measure_amplification(
                    root, options.block_bytes, options.segment_mib * MIB, options.truncations
                ),
                "machine": facts,
            }
    except (OSError, StoreError) as error:
        print(f"kvstore bench log: {error}")
        return 1
    print(json.dumps(found) if options.json else "\n".join(_table(found)))
    return 0


def _table(found: dict[str, Any]) -> list[str]:
    lines = [
        machine.line(found["machine"]),
        f"durable puts (log+sync) of one block of {found['block_bytes']} bytes; window {found['window_us']} µs",
        f"{'':<18}{'writers':>8}{'puts/s':>10}{'p50 ms':>9}{'p99 ms':>9}",
    ]
    rows = [("bare fdatasync", "1", found["puts"]["floor"])]
    for arm in ("grouped", "one flush each"):
        rows += [(arm, writers, figures) for writers, figures in found["puts"][arm].items()]
    for arm, writers, figures in rows:
        lines.append(
            f"{arm:<18}{writers:>8}{figures['puts_per_second']:>10.0f}"
            f"{1e3 * figures['p50_s']:>9.3f}{1e3 * figures['p99_s']:>9.3f}"
        )
    amplification = found["amplification"]
    return [
        *lines,
        f"bytes written over bytes acknowledged: {amplification['written_over_acknowledged']:.4f} over "
        f"{amplification['truncations']} truncations ({amplification['rewritten_bytes'] / MIB:.1f} MiB rewritten, "
        f"{amplification['acknowledged_bytes'] / MIB:.0f} MiB acknowledged)",
    ]
