"""Answering where blocks are, and hearing what readers did with them."""

from __future__ import annotations

import numpy as np

from kvstore.errors import BadRequest
from kvstore.messages import Located, Lookup, Miss, Touch
from kvstore.session import Return
from kvstore.shard.core import Call, Core
from kvstore.shard.leases import Slots

_REASONS = {Miss.ABSENT: "absent", Miss.EVICTED: "evicted", Miss.EXPIRED: "expired", Miss.REMOVED: "removed"}


def lookup(core: Core, call: Call, request: Lookup, now_ms: int) -> Located:
    """Slots, generations and clocks of `keys [n, 4]`; leased, touched and held as asked."""
    keys = request.keys
    if keys.ndim != 2 or keys.shape[1] != 4:
        raise BadRequest(f"keys have shape {keys.shape}, not [n, 4]")
    if not len(keys):
        return core.locate(keys, np.zeros(0, np.int64), 0)
    slots = core.pool.find(keys)
    asked = _asked(slots, prefix=request.prefix)
    slots[asked:] = -1
    hits = slots[slots >= 0]
    if request.session:
        _used_by(core, request.session, hits, now_ms)
    lease = (0, 0)
    if len(hits):
        if request.touch:
            core.pool.touch(hits, now_ms)
        if request.lease_ms > 0:
            lease = core.leases.grant(hits, request.lease_ms, call.client, now_ms)
    core.hotness.saw(keys, now_ms)
    located = core.locate(keys, slots, asked, lease)
    _count(core, len(hits), located.miss[:asked])
    return located


def _asked(slots: Slots, *, prefix: bool) -> int:
    """How many rows count: with `prefix` up to the first miss, that one included."""
    if not prefix:
        return len(slots)
    missing = np.flatnonzero(slots < 0)
    return int(missing[0]) + 1 if len(missing) else len(slots)


def _used_by(core: Core, handle: int, hits: Slots, now_ms: int) -> None:
    """A live session holds what it finds; one that has ended is counted as come back too late."""
    session = core.sessions.find(handle, now_ms)
    if session is None:
        came_back(core, core.sessions.came_back(handle, now_ms))
        return
    session.used_ms = now_ms
    core.sessions.hold(session, hits)


def came_back(core: Core, back: Return | None) -> None:
    """Count a session that was asked for again."""
    if back is None:
        return
    meters = core.meters.session(back.session_class)
    meters.returns["alive" if back.alive else "expired"] += 1
    meters.return_gap_seconds.observe(back.gap_ms / 1000)


def _count(core: Core, hits: int, misses: Slots) -> None:
    core.meters.lookup_blocks["hit"] += hits
    if len(misses) == hits:
        return
    core.meters.lookup_blocks["miss"] += len(misses) - hits
    for reason, count in enumerate(np.bincount(misses, minlength=len(_REASONS) + 1).tolist()):
        if reason and count:
            core.meters.lookup_misses[_REASONS[Miss(reason)]] += count


def touch(core: Core, request: Touch, now_ms: int) -> None:
    """Recency of slots that still hold what the reader saw, and the reader's counts."""
    slots, generations = request.slots, request.generations
    if len(slots) != len(generations):
        raise BadRequest(f"{len(slots)} slots and {len(generations)} generations")
    inside = (slots >= 0) & (slots < len(core.pool))
    slots, generations = slots[inside], generations[inside]
    same = core.pool.generations(slots) == generations
    if same.any():
        core.pool.touch(slots[same], now_ms)
    core.meters.add_reads(request.reads)
