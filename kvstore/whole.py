"""The quick way for a get of a batch at known places in one shard, all found: the same checks as `reader.read`.

Where anything is not as it should be, the general way finds out what.
"""

from __future__ import annotations

import time

import numpy as np

from kvstore.checks import all_good
from kvstore.header import Bytes
from kvstore.locations import LEASE_MARGIN_MS, Blocks, Locations
from kvstore.shards import Shards


def get_whole(
    shards: Shards, at: Locations, out: Bytes, block_bytes: int, *, verify: bool
) -> tuple[Blocks, int] | None:
    """Blocks and newest clock of locations, read into `out` `[n, slot_bytes]`; None where a row is not good at once."""
    number, slots, generations = int(at.shard[0]), at.slot, at.generation
    link = shards.links.get(number)
    peer = None if link is None else link.peer
    if peer is None or not peer.connected() or int(slots.min()) < 0:
        return None
    if len(shards) > 1 and (at.shard != number).any():
        return None
    began = time.perf_counter()
    if at.leases and int(at.until_ms.min()) - LEASE_MARGIN_MS <= time.monotonic_ns() // 1_000_000:
        return None
    # Without sums the generation must be the same before and after the copy, and even: nobody wrote in between.
    if not verify and (peer.generations(slots) != generations).any():
        return None
    descriptors = peer.read(slots, None, out)
    newest = all_good(out, at.keys, generations, block_bytes, verify=verify)
    if newest is None:
        return None
    if not verify and (peer.generations(slots) != generations).any():
        return None
    count = len(slots)
    shards.tallies[number].read(
        slots, generations, count, count * block_bytes, descriptors, time.perf_counter() - began
    )
    return Blocks(out, np.zeros(count, np.int8), block_bytes), newest
