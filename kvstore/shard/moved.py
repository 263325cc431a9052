"""What a shard lets go when the members change: blocks whose home is another shard now."""

from __future__ import annotations

import numpy as np

from kvstore.header import FLAG_TAIL
from kvstore.log import Kind
from kvstore.membership.homes import Homes
from kvstore.messages import Miss
from kvstore.shard.core import Core


def drop_tails(core: Core) -> int:
    """Tails that came back from the log: while we were away others may have had newer versions. How many blocks."""
    slots = np.flatnonzero(core.pool.fill() >= 0)
    slots = slots[core.pool.arena.headers["flags"][slots] & FLAG_TAIL != 0]
    core.remove(slots, Miss.REMOVED, Kind.REMOVE)
    return len(slots)


def drop_moved(core: Core, homes: Homes | None) -> int:
    """Out of the index at once, free when leases end; how many blocks. `homes` None: everything.

    They are dropped although the new home has not got them: should their keys ever come back here, what lies here might
    be older than what was published meanwhile. KV can be computed again; old KV of a tail must not come back.
    """
    slots = np.flatnonzero(core.pool.fill() >= 0)
    if homes is not None and len(slots):
        slots = slots[homes.home(core.pool.keys(slots)) != core.ownership.number]
    core.remove(slots, Miss.REMOVED, Kind.REMOVE)
    return len(slots)
