"""Taking keys out on request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import numpy as np

from kvstore.errors import BadRequest
from kvstore.keys import Keys
from kvstore.log import Kind
from kvstore.messages import Miss, Remove, Removed
from kvstore.shard.core import Core


def remove(core: Core, request: Remove) -> tuple[Removed, Awaitable[None] | None]:
    """Which keys were there; they are gone now. With a durability also what to await before it is told."""
    keys = request.keys
    if keys.ndim != 2 or keys.shape[1] != 4:
        raise BadRequest(f"keys have shape {keys.shape}, not [n, 4]")
    core.journal.require(request.durability)
    slots = core.pool.find(keys)
    found = slots >= 0
    logged = core.remove(np.unique(slots[found]), Miss.REMOVED, Kind.REMOVE)
    return Removed(found), _gone(core, keys[~found], logged) if request.durability else None


async def _gone(core: Core, absent: Keys, logged: asyncio.Future[None] | None) -> None:
    """Until no recovery would bring the keys back: neither those that were there nor those that just had left."""
    if logged is not None:
        await logged
    if len(absent):
        await core.journal.gone(absent, core.clock.now)
