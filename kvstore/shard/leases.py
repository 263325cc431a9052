"""Leases and pins: what readers may count on, by id. Times are milliseconds of CLOCK_MONOTONIC."""

from __future__ import annotations

import heapq
import secrets
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvstore.errors import BadRequest
from kvstore.membership.ownership import Ownership
from kvstore.messages import MAX_LEASE_MS, MAX_LEASES_AT_ONCE
from kvstore.meters import Meters
from kvstore.pool import Pool

PINNED_MS = 1 << 62
"""The end of a lease that is a pin: none."""

Slots = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@dataclass(slots=True)
class _Lease:
    extents: Slots
    """Each once. They stay what they are while the lease runs: their slots are not recycled."""
    until_ms: int
    client: int
    pins: int = 0


_Act = Callable[[int, _Lease], int]


class Leases:
    """The leases that run on one pool.

    The pool knows until when an extent is leased; how many leases are on it is counted here, so that the last one
    that is released early frees it early. Leases that end by themselves are counted off when the sweeper comes by:
    until then the count is too high, which only delays that.

    A lease is its client's: of another's nobody learns more than that there is none with that number.
    """

    def __init__(self, pool: Pool, meters: Meters, ownership: Ownership | None = None) -> None:
        self._ownership = ownership or Ownership()
        self._pool = pool
        self._meters = meters
        self._leases: dict[int, _Lease] = {}
        self._of_client: defaultdict[int, set[int]] = defaultdict(set)
        self._on_extent = np.zeros(len(pool), np.int32)
        self._ends: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def pins(self) -> int:
        """Leases that are pins."""
        return sum(1 for lease in self._leases.values() if lease.pins)

    def grant(self, slots: Slots, lease_ms: int, client: int, now_ms: int) -> tuple[int, int]:
        """A lease on published `slots`: its id and its end; none (0, 0) from a shard whose own lease has ended."""
        until = self._end(lease_ms, now_ms)
        if until <= now_ms:
            return 0, 0
        self._pool.lease(slots, until)
        number = secrets.randbits(63) + 1
        while number in self._leases:
            number = secrets.randbits(63) + 1
        extents = self._pool.extents_of(slots)
        self._on_extent[extents] += 1
        self._leases[number] = _Lease(extents, until, client)
        self._of_client[client].add(number)
        heapq.heappush(self._ends, (until, number))
        self._meters.leases_granted += 1
        return number, until

    def _end(self, lease_ms: int, now_ms: int) -> int:
        """No later than the shard's own."""
        return min(now_ms + min(lease_ms, MAX_LEASE_MS), self._ownership.until_ms)

    def renew(self, numbers: Words, lease_ms: int, client: int, now_ms: int) -> Ints:
        """Extend leases (`lease_ms` > 0) or release them (0); the end of each, 0 for those that had ended already."""
        return self._each(numbers, client, now_ms, lambda number, lease: self._renew(number, lease, lease_ms, now_ms))

    def pin(self, numbers: Words, client: int, now_ms: int) -> Ints:
        """Leases become pins, or are pinned once more; `PINNED_MS`, or 0 for those that had ended already."""
        return self._each(numbers, client, now_ms, lambda _, lease: self._pin(lease))

    def unpin(self, numbers: Words, lease_ms: int, client: int, now_ms: int) -> Ints:
        """One pin less. After the last a lease is renewed or released as by `renew`."""
        return self._each(numbers, client, now_ms, lambda number, lease: self._unpin(number, lease, lease_ms, now_ms))

    def sweep(self, now_ms: int) -> int:
        """Forget leases that have ended; how many."""
        ended = 0
        while self._ends and self._ends[0][0] <= now_ms:
            _, number = heapq.heappop(self._ends)
            lease = self._leases.get(number)
            if lease is None or lease.pins:
                continue
            if lease.until_ms > now_ms:
                heapq.heappush(self._ends, (lease.until_ms, number))
            else:
                self._on_extent[self._forget(number).extents] -= 1
                ended += 1
        self._meters.leases_expired += ended
        return ended

    def client_gone(self, client: int) -> None:
        """Its process has ended: so have its leases and pins."""
        for number in list(self._of_client.get(client, ())):
            lease = self._leases[number]
            self._pool.pin_extents(lease.extents, -lease.pins)
            self._release(number)

    def _release(self, number: int) -> None:
        """The reader is done. Its extents are still there: the lease has not ended, or it was pinned."""
        extents = self._forget(number).extents
        self._on_extent[extents] -= 1
        self._pool.end_leases(extents[self._on_extent[extents] == 0])

    def _forget(self, number: int) -> _Lease:
        lease = self._leases.pop(number)
        mine = self._of_client[lease.client]
        mine.discard(number)
        if not mine:
            del self._of_client[lease.client]
        return lease

    def _each(self, numbers: Words, client: int, now_ms: int, act: _Act) -> Ints:
        ends = np.zeros(len(numbers), np.int64)
        for row, number in enumerate(require_numbers(numbers).tolist()):
            lease = self._leases.get(number)
            if lease is not None and lease.client == client and (lease.pins or lease.until_ms > now_ms):
                ends[row] = act(number, lease)
        return ends

    def _renew(self, number: int, lease: _Lease, lease_ms: int, now_ms: int) -> int:
        if lease.pins:
            return PINNED_MS
        if lease_ms <= 0:
            self._release(number)
            return now_ms
        lease.until_ms = max(lease.until_ms, self._end(lease_ms, now_ms))
        self._pool.lease_extents(lease.extents, lease.until_ms)
        return lease.until_ms

    def _pin(self, lease: _Lease) -> int:
        self._pool.pin_extents(lease.extents, 1)
        lease.pins += 1
        return PINNED_MS

    def _unpin(self, number: int, lease: _Lease, lease_ms: int, now_ms: int) -> int:
        if not lease.pins:
            return lease.until_ms
        if lease.pins == 1 and lease_ms > 0:
            lease.until_ms = max(now_ms, self._end(lease_ms, now_ms))
            self._pool.lease_extents(lease.extents, lease.until_ms)
        self._pool.pin_extents(lease.extents, -1)
        lease.pins -= 1
        if lease.pins:
            return PINNED_MS
        if lease_ms <= 0:
            self._release(number)
            return now_ms
        heapq.heappush(self._ends, (lease.until_ms, number))
        return lease.until_ms


def require_numbers(numbers: Words) -> Words:
    """Raise `BadRequest` for too many leases, or one that is named twice."""
    if len(numbers) > MAX_LEASES_AT_ONCE:
        raise BadRequest(f"{len(numbers)} leases in one message: at most {MAX_LEASES_AT_ONCE} go at once")
    if len(np.unique(numbers)) != len(numbers):
        raise BadRequest("a message names a lease twice")
    return numbers
