"""Gets where some shards are reached over the network: their index has to be asked, and their memory read.

What is found is leased for the read, so that it is still there when the read comes by; the lease is given back behind
the caller's back, some at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore import messages as m
from kvstore.checks import all_good, one_good
from kvstore.deadline import Deadline
from kvstore.errors import BadRequest, LeaseExpired, ShardUnavailable, StoreError
from kvstore.fetch import Fetch
from kvstore.header import Bytes
from kvstore.keys import Keys
from kvstore.locations import LEASE_MARGIN_MS, Blocks, Locations
from kvstore.shards import Shards

if TYPE_CHECKING:
    from kvstore.client_reads import Reads

LEASE_MS = 2_000
"""Of a read: longer than a batch takes on a slow lane, short for a reader that dies (policy)."""
GATHER_S = 0.02
_LONGEST_NAP_S = 0.005


class Returns:
    """Leases on their way back: one call a shard for all of some milliseconds. For one loop."""

    def __init__(self, reads: Reads) -> None:
        self._reads: Reads = weakref.proxy(reads)  # no circle: a client's arenas go with it, not with a collection
        self._leases: dict[int, list[int]] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, located: Locations) -> None:
        for number, leases in located.leases.items():
            self._leases.setdefault(number, []).extend(leases)
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


async def get_at_once(
    shards: Shards, at: Locations, out: Bytes, block_bytes: int, deadline: Deadline, *, verify: bool
) -> tuple[Blocks, int] | None:
    """The quick way (as `whole.get_whole`) for blocks at known places in one shard that is reached over the network;
    None where anything is not as it should be: the general way then finds out what."""
    number, slots, count = int(at.shard[0]), at.slot, len(at.slot)
    link = shards.links.get(number)
    peer: Any = None if link is None else link.peer
    if peer is None or peer.index is not None or not peer.connected() or not (_leased(at) if at.leases else verify):
        return None
    if len(shards) > 1 and count > 1 and (at.shard != number).any():
        return None
    began = time.perf_counter()
    try:
        begun = peer.fetch_soon(slots, out, deadline)
    except BadRequest:  # not all were found
        return None
    descriptors = begun if isinstance(begun, int) else await begun
    newest = _believed(at, out, block_bytes, verify)
    if newest is None:
        return None
    seconds = time.perf_counter() - began
    shards.tallies[number].read(slots, at.generation, count, count * block_bytes, descriptors, seconds)
    return Blocks(out, np.zeros(count, np.int8), block_bytes), newest


def _leased(at: Locations) -> bool:
    """`still_leased`, where everything is to be."""
    until = at.until_ms.item(0) if len(at.until_ms) == 1 else int(at.until_ms.min())
    return until - LEASE_MARGIN_MS > time.monotonic_ns() // 1_000_000


def _believed(at: Locations, out: Bytes, block_bytes: int, verify: bool) -> int | None:
    """The newest clock, if every row is good. Without sums it is the lease that says that nobody wrote meanwhile."""
    if len(out) == 1:
        newest = one_good(out[0], at.keys[0].tolist(), at.generation.item(0), block_bytes, verify=verify)
    else:
        newest = all_good(out, at.keys, at.generation, block_bytes, verify=verify)
    return newest if verify or _leased(at) else None


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
