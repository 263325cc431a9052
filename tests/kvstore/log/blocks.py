"""Blocks and keys for the log's tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvstore.log import Batch, BlockShape, Durability, LiveEntry, Log, LogConfig, appends, drops, puts
from kvstore.log.record import Kind

SHAPE = BlockShape(2, 4, 32)


def config(**changes: object) -> LogConfig:
    values: dict[str, object] = {"segment_bytes": 1 << 14, "budget_segments": 5, "durability": Durability.LOG_SYNC}
    return LogConfig(SHAPE, **(values | changes))  # type: ignore[arg-type]


def keys(*numbers: int) -> npt.NDArray[np.uint64]:
    column = np.zeros((len(numbers), 4), np.uint64)
    column[:, 3] = numbers
    return column


def block(number: int, clock: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng([number, clock]).integers(0, 256, SHAPE.block_bytes, np.uint8)


def put(clock: int, *numbers: int) -> Batch:
    chain = bytes([clock % 256]) * 24
    return puts(
        keys(*numbers),
        [block(number, clock) for number in numbers],
        clock=clock,
        valid=4,
        chain=chain,
        session=7,
    )


def grow(clock: int, number: int, first: int, valid: int) -> Batch:
    """Tokens `[first, valid)` of the block that `block(number, 0)` is when full."""
    packed = SHAPE.gather(block(number, 0), first, valid)
    return appends(
        keys(number),
        [packed],
        clock=clock,
        first=first,
        valid=valid,
        block_sums=SHAPE.sum_of(block(number, 0), valid),
    )


def drop(clock: int, *numbers: int, kind: Kind = Kind.EVICT) -> Batch:
    return drops(keys(*numbers), kind, clock=clock)


def write(log: Log, *batches: Batch) -> None:
    for ticket in [log.append(batch) for batch in batches]:
        log.wait(ticket, 10)


def number_of(entry: LiveEntry) -> int:
    return int(np.frombuffer(entry.key, np.uint64)[3])


def clocks(entries: Iterable[LiveEntry]) -> dict[int, int]:
    """Block number → clock; checks the bytes of whole blocks on the way."""
    found = {}
    for entry in entries:
        number = number_of(entry)
        if entry.session:
            assert bytes(entry.payload) == block(number, entry.clock).tobytes()
        found[number] = entry.clock
    return found


def recover(directory: Path, **changes: object) -> dict[int, int]:
    with Log(directory, config(**changes)) as log:
        return clocks(log.recovered())
