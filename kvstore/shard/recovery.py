"""From a log's live blocks back to a pool: new generations, the same clocks, the tails with their sessions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from kvstore.errors import BadRequest, PoolExhausted
from kvstore.header import FLAG_TAIL
from kvstore.log import Kind, LiveEntry, Log
from kvstore.messages import Miss
from kvstore.session import DEFAULT_TTL_MS, Session, Tail
from kvstore.shard.core import Core
from kvstore.shard.leases import Slots

_log = logging.getLogger("kvscope.store.log")
RECOVERED_CLASS = "recovered"
_BATCH = 256


def require_room(log: Log, blocks: int, *, drop_surplus: bool) -> None:
    """Raise `BadRequest` when the log holds more than a pool of `blocks`: what does not fit would be gone for good."""
    surplus = log.live_blocks - blocks
    if surplus <= 0:
        return
    held = f"the log in {log.directory} holds {log.live_blocks} blocks, the pool {blocks}"
    if not drop_surplus:
        raise BadRequest(
            f"{held}: start with --blocks {log.live_blocks} or more, or with --drop-surplus to lose {surplus} of them"
        )
    _log.warning("%s: %d of them are dropped", held, surplus)


def recover(core: Core, entries: Iterable[LiveEntry], last_clock: int, now_ms: int) -> int:
    """Publish what the log held, oldest first; how many blocks. The clock goes on above all that were seen.

    A pool smaller than what the log holds (see `require_room`) evicts as usual: mostly the older ones. A session that
    owned a tail lives again under its handle, with the default TTL from now on.
    """
    count = 0
    core.clock.merge(last_clock)
    for batch in _batches(entries, min(_BATCH, len(core.pool))):
        core.clock.merge(max(entry.clock for entry in batch))
        try:
            slots = core.reserve(len(batch), one_run=False, now_ms=now_ms)
        except PoolExhausted:
            _pass_over(core, batch)
            continue
        _fill(core, slots, batch)
        _publish(core, slots, batch, now_ms)
        count += len(batch)
    return count


def _batches(entries: Iterable[LiveEntry], size: int) -> Iterator[list[LiveEntry]]:
    source = iter(entries)
    while batch := list(islice(source, size)):
        yield batch


def _pass_over(core: Core, batch: list[LiveEntry]) -> None:
    """The tails of recovered sessions fill the pool: these are evicted before they were there."""
    keys = np.frombuffer(b"".join(entry.key for entry in batch), np.uint64).reshape(-1, 4)
    core.ghosts.add(keys, Miss.EVICTED)
    core.journal.dropped(keys, Kind.EVICT, core.clock.now)
    core.meters.evicted_blocks["capacity"] += len(batch)


def _fill(core: Core, slots: Slots, batch: list[LiveEntry]) -> None:
    core.pool.arena.fill(slots, [np.frombuffer(entry.payload, np.uint8) for entry in batch])


def _publish(core: Core, slots: Slots, batch: list[LiveEntry], now_ms: int) -> None:
    keys = np.frombuffer(b"".join(entry.key for entry in batch), np.uint64).reshape(-1, 4)
    clock = np.array([entry.clock for entry in batch], np.uint64)
    valid = np.array([entry.valid for entry in batch], np.int64)
    chains = np.frombuffer(b"".join(entry.chain for entry in batch), np.uint8).reshape(-1, 24)
    sums = core.pool.arena.sums(slots)
    # Only tails are logged with their session.
    tails = np.array([entry.session != 0 for entry in batch], np.bool_)
    for rows, flags in ((np.flatnonzero(~tails), 0), (np.flatnonzero(tails), FLAG_TAIL)):
        if len(rows):
            core.pool.publish(
                slots[rows], keys[rows], clock[rows], valid[rows], chains[rows], sums[rows], flags=flags, now_ms=now_ms
            )
    core.journal.noted(slots, keys)
    for row in np.flatnonzero(tails).tolist():
        _revive(core, batch[row], int(slots[row]), now_ms)


def _revive(core: Core, entry: LiveEntry, slot: int, now_ms: int) -> None:
    session: Session | None = core.sessions.find(entry.session, now_ms)
    if session is None:
        session = core.sessions.open(RECOVERED_CLASS, DEFAULT_TTL_MS, now_ms, handle=entry.session)
    digests = np.zeros((entry.valid, 24), np.uint8)
    digests[-1] = np.frombuffer(entry.chain, np.uint8)
    session.tails[entry.key] = Tail(slot, entry.clock, entry.valid, digests)
    core.sessions.hold(session, np.array([slot]))
