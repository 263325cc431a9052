"""From a durable put's batch to the moment when it may be published: the log must then hold what is answered.

While the log was flushing, others went on: a key may have been taken away (the log says so behind our record), or
published by somebody who asked for no durability. Both are written again before anything is promised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvstore.keys import Keys
from kvstore.log import Batch, Kind
from kvstore.shard.claims import Claim, Slots, names
from kvstore.shard.core import Call, Core

Words = npt.NDArray[np.uint64]


class Flight(Protocol):
    """A put or an append under way; see `puts` and `tails`."""

    call: Call
    rows: Slots
    slots: Slots
    sums: Words
    clock: int
    logged: Claim | None
    pins: list[Slots]


def existing_batch(core: Core, slots: Slots, session: int = 0) -> Batch:
    """Published blocks, whole, as they lie in the pool."""
    headers = core.pool.arena.headers[slots]
    return core.journal.puts(
        core.pool.keys(slots),
        slots,
        clock=core.pool.clocks(slots),
        valid=core.pool.valid(slots),
        chains=headers["chain"],
        sums=headers["data_sum"],
        session=session,
    )


async def until_logged(
    core: Core, flight: Flight, keys: Keys, valid: Slots, chains: npt.NDArray[np.uint8], check: Callable[[], object]
) -> None:
    """Wait until the log holds all of `keys` that will be there, as it will be there. `valid`, `chains`: a row a key.

    `check` raises what ends the flight. To be published without another wait.
    """
    while (claim := flight.logged) is not None:
        await claim.future
        _arrived(core, claim)
        check()
        if not _again(core, flight, claim, keys, valid, chains):
            return


def _arrived(core: Core, claim: Claim) -> None:
    """Published blocks are in the log now, where they still are what was written."""
    slots = claim.existing
    if not len(slots):
        return
    keys = core.pool.keys(slots)
    same = core.pool.find(keys) == slots
    if claim.dropped:
        same &= np.array([name not in claim.dropped for name in names(keys)], np.bool_)
    core.journal.noted(slots[same], keys[same])


def _again(core: Core, flight: Flight, claim: Claim, keys: Keys, valid: Slots, chains: npt.NDArray[np.uint8]) -> bool:
    """Hand over once more what the log would lack; False when there is nothing of the kind."""
    give_way(core, flight, keys, valid)
    found = core.pool.find(keys)
    there = np.unique(found[found >= 0])
    there = there[~core.journal.logged[there]]
    own = np.zeros(len(flight.rows), np.bool_)
    if claim.dropped:
        own = np.array([name in claim.dropped for name in names(keys[flight.rows])], np.bool_)
    batches = []
    if own.any():
        rows = flight.rows[own]
        clock = np.full(len(rows), flight.clock, np.uint64)
        batches.append(
            core.journal.puts(
                keys[rows],
                flight.slots[own],
                clock=clock,
                valid=valid[rows],
                chains=chains[rows],
                sums=flight.sums[own],
            )
        )
    if len(there):
        core.pool.pin(there)
        flight.pins.append(there)
        batches.append(existing_batch(core, there))
    if batches:
        core.journal.write_again(claim, Batch.joined(*batches), flight.call.traceparent, there)
    return bool(batches)


def give_way(core: Core, flight: Flight, keys: Keys, valid: Slots) -> None:
    """Blocks that somebody else published meanwhile stay as they are; ours are abandoned."""
    found = core.pool.find(keys[flight.rows])
    lost = found >= 0
    if not lost.any():
        return
    if flight.logged is not None:
        # Our record may be the newest: where it is not what the others published, that is written again.
        theirs = found[lost]
        other = core.pool.arena.headers["data_sum"][theirs] != flight.sums[lost]
        other |= core.pool.valid(theirs) != valid[flight.rows[lost]]
        core.journal.logged[theirs[other]] = False
    core.pool.abandon(flight.slots[lost])
    flight.rows, flight.slots, flight.sums = flight.rows[~lost], flight.slots[~lost], flight.sums[~lost]


def take_back(core: Core, flight: Flight, keys: Keys, error: BaseException) -> None:
    """What was logged and will not be published must not come back by a recovery. Our slots were abandoned."""
    claim = flight.logged
    if claim is None:
        return
    refused = claim.future.done() and not claim.future.cancelled() and claim.future.exception() is error
    if refused and not claim.again:
        return  # nothing was written
    found = core.pool.find(keys)
    unpromised = (found < 0) | ~core.journal.logged[np.where(found >= 0, found, 0)]
    unpromised &= np.array([name in claim.names for name in names(keys)], np.bool_)
    core.journal.dropped(keys[unpromised], Kind.REMOVE, flight.clock)
