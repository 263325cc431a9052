"""The quick way for a get of one block at a known place: the same checks as `reader.read`, without columns."""

from __future__ import annotations

import time

import numpy as np

from kvstore.checks import one_good
from kvstore.header import Bytes
from kvstore.locations import LEASE_MARGIN_MS, Blocks, Locations
from kvstore.shards import Shards


def get_one(shards: Shards, at: Locations, out: Bytes, block_bytes: int, *, verify: bool) -> tuple[Blocks, int] | None:
    """Block and clock of one location, read into `out` `[1, slot_bytes]`; None where anything is not as it should be:
    the general way then finds out what."""
    number, slot, generation = int(at.shard[0]), int(at.slot[0]), int(at.generation[0])
    link = shards.links.get(number)
    peer = None if link is None else link.peer
    if slot < 0 or peer is None or not peer.connected():
        return None
    began = time.perf_counter()
    if at.leases and at.until_ms[0] - LEASE_MARGIN_MS <= time.monotonic_ns() // 1_000_000:
        return None
    if not verify and int(peer.generations(at.slot)[0]) != generation:
        return None
    peer.read(at.slot, None, out)
    clock = one_good(out[0], at.keys[0].tolist(), generation, block_bytes, verify=verify)
    if clock is None:
        return None
    if not verify and int(peer.generations(at.slot)[0]) != generation:
        return None
    shards.tallies[number].read(at.slot, at.generation, 1, block_bytes, 1, time.perf_counter() - began)
    return Blocks(out, np.zeros(1, np.int8), block_bytes), clock
