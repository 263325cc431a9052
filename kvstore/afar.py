"""Gets where some shards are reached over the network: their index has to be asked, and their memory read.

What is found is leased for the read, so that it is still there when the read comes by; the lease is given back behind
the caller's back, some at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import numpy as np

from kvstore import messages as m
from kvstore.deadline import Deadline
from kvstore.errors import LeaseExpired, ShardUnavailable, StoreError
from kvstore.fetch import Fetch
from kvstore.keys import Keys
from kvstore.locations import LEASE_MARGIN_MS, Locations

if TYPE_CHECKING:
    from kvstore.client_reads import Reads

LEASE_MS = 2_000
"""Of a read: longer than a batch takes on a slow lane, short for a reader that dies (policy)."""
GATHER_S = 0.02
_LONGEST_NAP_S = 0.005


class Returns:
    """Leases on their way back: one call a shard for all of some milliseconds. For one loop."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._leases: dict[int, list[int]] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, located: Locations) -> None:
        for number, lease in located.leases.items():
            self._leases.setdefault(number, []).append(lease)
        if self._leases and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send())

    async def close(self) -> None:
        """What is not sent ends by itself."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _send(self) -> None:
        await asyncio.sleep(GATHER_S)
        leases, self._leases, self._task = self._leases, {}, None
        for number, numbers in leases.items():
            for at in range(0, len(numbers), m.MAX_LEASES_AT_ONCE):
                with contextlib.suppress(StoreError):
                    message = m.Lease(np.asarray(numbers[at : at + m.MAX_LEASES_AT_ONCE], np.uint64), 0, 0)
                    await self._reads.shards.links[number].call(message, Deadline(LEASE_MS))


async def get_afar(reads: Reads, fetch: Fetch, keys: Keys, located: Locations | None, deadline: Deadline) -> None:
    """Drive `fetch` of `keys` to its end, from known places first if there are any. Raises `ShardUnavailable` for a
    shard that has gone or does not answer in time, and what `Client.get` says."""
    nap = 0.0
    first = located
    while True:
        rows = np.flatnonzero(fetch.waiting)
        try:
            if first is not None:
                at, first = first, None
                await fetch.from_afar(at, np.arange(len(keys)), deadline)
            else:
                await _look_and_read(reads, fetch, keys, rows, deadline)
        except ShardUnavailable:
            if deadline.passed:
                raise
            await reads.shards.ensure(fetch.shards_waited_for(), deadline)
            await asyncio.sleep(min(0.001, deadline.left_s))
            continue
        if fetch.done or deadline.passed:
            return
        await asyncio.sleep(min(nap, deadline.left_s))
        nap = min(_LONGEST_NAP_S, nap * 2 + 0.0001)


async def _look_and_read(
    reads: Reads, fetch: Fetch, keys: Keys, rows: np.ndarray[tuple[int], np.dtype[np.int64]], deadline: Deadline
) -> None:
    lease_ms = min(LEASE_MS, max(2 * LEASE_MARGIN_MS, deadline.left_ms))
    wanted = keys if len(rows) == len(keys) else keys[rows]
    at = await reads.lookup(wanted, lease_ms=lease_ms, deadline_ms=deadline.left_ms)
    try:
        with contextlib.suppress(LeaseExpired):  # it took so long to get here: look again
            await fetch.from_afar(at, rows, deadline)
    finally:
        reads.returns.add(at)
