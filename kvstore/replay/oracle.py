"""What a cache of a given size could have answered: strict LRU, and no limit at all.

A request looks all its windows up, then uses them in order: what is there becomes the newest, what is not is added,
and beyond the capacity the oldest goes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvstore.replay.trace import Request

Homes = Callable[[Request], npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts over a whole trace. A prefix hit is a hit with nothing but hits before it in its request."""

    requests: int
    blocks: int
    block_hits: int
    prefix_hits: int
    evictions: int

    @property
    def block_hit_ratio(self) -> float | None:
        """None when the trace refers to nothing."""
        return self.block_hits / self.blocks if self.blocks else None

    @property
    def prefix_hit_ratio(self) -> float | None:
        return self.prefix_hits / self.blocks if self.blocks else None


def strict_lru(requests: Sequence[Request], capacities: Sequence[int], homes: Homes | None = None) -> Outcome:
    """An LRU of `capacities[i]` windows for shard i; `homes` gives the shard of each window of a request `[n]`."""
    caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in capacities]
    blocks = block_hits = prefix_hits = evictions = 0
    for request in requests:
        windows = request.windows.tolist()
        shards = homes(request).tolist() if homes else [0] * len(windows)
        there = [window in caches[shard] for window, shard in zip(windows, shards, strict=True)]
        blocks += len(windows)
        block_hits += sum(there)
        prefix_hits += prefix_length(there)
        for window, shard in zip(windows, shards, strict=True):
            cache = caches[shard]
            if window in cache:
                cache.move_to_end(window)
                continue
            cache[window] = None
            if len(cache) > capacities[shard]:
                cache.popitem(last=False)
                evictions += 1
    return Outcome(len(requests), blocks, block_hits, prefix_hits, evictions)


def infinite(requests: Sequence[Request]) -> Outcome:
    """A cache that never forgets."""
    return strict_lru(requests, [np.iinfo(np.int64).max])


def prefix_length(there: Sequence[bool]) -> int:
    """How many of `there` are true before the first that is not."""
    for place, hit in enumerate(there):
        if not hit:
            return place
    return len(there)
