"""Where blocks are, and blocks: the columns that a client hands out, one row a key."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kvstore.arena import headers_of
from kvstore.header import HEADER_BYTES, Bytes, Headers
from kvstore.keys import Keys

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

LEASE_MARGIN_MS = 25
"""A reader ends its lease so much before the shard does, which waits another 50 ms after that (policy)."""


class State(IntEnum):
    """Of one row of a get. Only `OK` has bytes; the others are misses."""

    OK = 0
    ABSENT = 1
    RECYCLED = 2
    """Its slot went to another block while it was read, until the deadline."""
    TORN = 3
    """Every copy met a write, until the deadline."""
    STALE = 4
    """Only older versions than the one that was asked for, until the deadline."""
    LATE = 5
    """Not looked at: the deadline came first."""


@dataclass(slots=True)
class Locations:
    """Answer to a lookup. `slot` −1 where `miss` (`messages.Miss`) says why.

    `clock` and `valid` are 0 where the mapped index was asked: it does not know them, the blocks do. `until_ms` `[n]`:
    end of the lease by CLOCK_MONOTONIC of the shard, 0 without one; `leases`: ids by shard (mostly one).
    """

    keys: Keys
    shard: Ints
    slot: Ints
    generation: Words
    clock: Words
    valid: Ints
    miss: Ints
    until_ms: Ints
    leases: dict[int, list[int]] = field(default_factory=dict)

    @classmethod
    def nowhere(cls, keys: Keys, shard: Ints) -> Locations:
        n = len(keys)
        return cls(
            keys,
            shard,
            np.full(n, -1, np.int64),
            np.zeros(n, np.uint64),
            np.zeros(n, np.uint64),
            np.zeros(n, np.int64),
            np.zeros(n, np.int64),
            np.zeros(n, np.int64),
        )

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, rows: slice | Ints) -> Locations:
        """Some rows, under the same leases."""
        return Locations(
            self.keys[rows],
            self.shard[rows],
            self.slot[rows],
            self.generation[rows],
            self.clock[rows],
            self.valid[rows],
            self.miss[rows],
            self.until_ms[rows],
            self.leases,
        )

    @property
    def found(self) -> Flags:
        return self.slot >= 0

    @property
    def prefix(self) -> int:
        """Rows before the first miss."""
        missing = np.flatnonzero(self.slot < 0)
        return int(missing[0]) if len(missing) else len(self)

    @property
    def leased(self) -> bool:
        return bool(self.leases)


class Answer:
    """What every answer to a get tells, wherever its blocks went: of each row its state, and its header."""

    __slots__ = ()
    state: npt.NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.state)

    @property
    def found(self) -> Flags:
        return np.asarray(self.state == State.OK, np.bool_)

    @property
    def headers(self) -> Headers:
        """`[n]` of `header.HEADER`, a view."""
        raise NotImplementedError

    @property
    def valid(self) -> Ints:
        """Valid tokens of each block, 0 for a miss."""
        return np.where(self.found, self.headers["valid"], 0).astype(np.int64)

    @property
    def clock(self) -> Words:
        """Commit clock of each block, 0 for a miss."""
        return np.where(self.found, self.headers["clock"], 0).astype(np.uint64)


@dataclass(slots=True)
class Blocks(Answer):
    """Answer to a get. `slots` `[n, slot_bytes]` as they were copied; rows whose `state` is not OK hold nothing."""

    slots: Bytes
    state: npt.NDArray[np.int8]
    block_bytes: int

    @property
    def data(self) -> Bytes:
        """`[n, block_bytes]`, a view."""
        return self.slots[:, HEADER_BYTES : HEADER_BYTES + self.block_bytes]

    @property
    def headers(self) -> Headers:
        """`[n]` of `header.HEADER`, a view."""
        return headers_of(self.slots)


def buffer(n: int, slot_bytes: int) -> Bytes:
    """Room for `n` slots, zeroed: pages that a read need not fault in."""
    room = np.empty((n, slot_bytes), np.uint8)
    room.fill(0)
    return room
