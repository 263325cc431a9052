"""What a shard may publish, and until when.

A shard that is a member by etcd owns its keys only as long as its lease lasts for certain: counted on its own clock
from the moment at which it *asked* for the renewal, less a margin. Whoever else gets the keys does so after etcd ended
the lease, which is later. Where keys move between shards that both live, the new home publishes nothing under them
before the old one has said that it is done with the epoch before. So two shards never publish under one key at the same
time, whatever the network does.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from kvstore.errors import EpochStale, OwnerLapsed
from kvstore.keys import Keys

if TYPE_CHECKING:
    from kvstore.membership.homes import Homes

FOREVER = 1 << 62
_MOST_ASLEEP_MS = 20
"""Less than that is two clocks read one after the other."""


class Ownership:
    """A shard's own, of static membership (owns for ever) unless `until_ms` and `homes` are set."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.until_ms = FOREVER
        """CLOCK_MONOTONIC; readers' leases end no later."""
        self.registered = False
        """Whether it owns only what the membership says, instead of all keys that come."""
        self._asleep_ms = _asleep_ms()
        self.leaving = False
        self.epoch = 0
        self.homes: Homes | None = None
        """Of `epoch`."""
        self.settled: Homes | None = None
        """Of the last epoch that every member has taken up; `homes` once that is so."""

    def register(self, number: int) -> None:
        """From now on the membership says what is owned: nothing, so far."""
        self.registered, self.number, self.until_ms = True, number, 0

    def renewed(self, until_ms: int) -> None:
        """The lease lasts until then."""
        self.until_ms, self._asleep_ms = until_ms, _asleep_ms()

    def leave(self) -> None:
        """Publish nothing any more: others will."""
        self.leaving, self.until_ms = True, 0

    def require(self, now_ms: int) -> None:
        """Before something is published: raise `OwnerLapsed` where the lease may have ended, `EpochStale` from a shard
        that leaves by itself (the new home is known in a moment)."""
        if self.leaving:
            raise EpochStale(f"shard {self.number} is leaving the store")
        self.require_still(now_ms)

    def require_still(self, now_ms: int) -> None:
        """After it was published: raise `OwnerLapsed` where the lease may have ended meanwhile."""
        if now_ms >= self.until_ms or (self.registered and _asleep_ms() - self._asleep_ms > _MOST_ASLEEP_MS):
            raise OwnerLapsed(
                f"shard {self.number} could not renew its lease: it publishes nothing until it can (gets go on)"
            )

    def require_home(self, keys: Keys) -> None:
        """Raise `EpochStale` where a key's home is another shard now."""
        if not self.registered:
            return
        if self.homes is None:
            raise EpochStale(f"shard {self.number} is not a member yet")
        ours = self.homes.home(keys) == self.number
        if ours.all() and self.settled is not self.homes:
            before = None if self.settled is None else self.settled.home(keys) == self.number
            if before is None or not before.all():
                raise EpochStale(f"keys are still being handed over to shard {self.number} in epoch {self.epoch}")
        elsewhere = int(np.count_nonzero(~ours))
        if elsewhere:
            raise EpochStale(
                f"{elsewhere} of {len(keys)} keys have another home than shard {self.number} in epoch {self.epoch}"
            )


def _asleep_ms() -> int:
    """How long this host has been suspended so far: CLOCK_MONOTONIC, by which leases go, stands still then."""
    return (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()) // 1_000_000
