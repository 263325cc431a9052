"""How blocks move: register, connect, read runs, close. Transports only read; what is written, a shard pulls.

A transport knows slots and bytes, not keys: what a copy is worth is decided by `kvstore.reader`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvstore.arena import Arena
from kvstore.deadline import Deadline
from kvstore.header import Bytes
from kvstore.index import Index

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


class Peer(Protocol):
    """A connection to one shard's pool."""

    facts: dict[str, Any]
    """What the shard said of itself (`ShardServer.facts`), and `client`: the number that it knows us by."""
    index: Index | None
    """Its index, where that can be seen from here."""

    def read(self, slots: Ints, rows: Ints | None, out: Bytes) -> int:
        """Copy whole slots, header and data: slot `slots[i]` into `out[rows[i]]` (`rows` None: into `out[i]`).

        `out` `[m, slot_bytes]`, C-contiguous. Returns the number of descriptors (runs) that it took. Nothing is
        checked, and the copy may meet a write.
        """
        ...

    def generations(self, slots: Ints) -> Words:
        """The generations of these slots at this moment."""
        ...

    def alive(self) -> bool:
        """False once the shard's process has ended (a stopped process is alive)."""
        ...

    def connected(self) -> bool:
        """Alive, and it still knows us: asked once a batch."""
        ...

    when_dead: Callable[[], None] | None
    """Called once the process is known to have ended, where that may come after `connected` is False (on a loop)."""

    def close(self) -> None: ...


class Distant(Protocol):
    """What a peer without an index offers beside: reads that take their time without blocking a loop."""

    async def fetch(self, slots: Ints, rows: Ints | None, out: Bytes, deadline: Deadline) -> int:
        """As `Peer.read`. Raises `ShardUnavailable`, also where the deadline has passed."""
        ...

    def fetch_soon(self, slots: Ints, out: Bytes, deadline: Deadline) -> int | Coroutine[Any, Any, int]:
        """`fetch` of slots `slots[i]` into `out[i]`: what it took if it could be done in a moment, else what is to be
        awaited, at once."""
        ...

    async def fetch_generations(self, slots: Ints, deadline: Deadline) -> Words:
        """As `Peer.generations`."""
        ...


class Transport(Protocol):
    """One way to reach pools."""

    name: str

    def register(self, arena: Arena) -> None:
        """Memory of ours that shards may read: the staging arena."""
        ...

    async def connect(self, described: dict[str, Any], layout: dict[str, Any], name: str, deadline: Deadline) -> Peer:
        """Reach the shard that described itself so. Raises `LayoutMismatch`, `StagingRejected`, `ShardUnavailable`."""
        ...

    def close(self) -> None: ...
