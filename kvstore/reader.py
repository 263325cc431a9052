"""One-sided reads: copy slots out of pools, then believe only what agrees with key, generation and sums.

A read with sums takes whatever it copied at its word only if both sums hold. Without sums, the generation is looked at
before and after the copy: two equal even values with the right key mean that nobody wrote in between (a seqlock; the
order of loads is x86's, where loads are not reordered with loads).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from kvstore.bitmap import runs_of
from kvstore.checks import Verdict, judge
from kvstore.deadline import Deadline
from kvstore.errors import ChecksumMismatch
from kvstore.header import Bytes
from kvstore.keys import Keys
from kvstore.transport import Distant, Ints, Peer, Words

Verdicts = npt.NDArray[np.int8]

_READ_AGAIN = 3
"""Copies of one unchanged generation that must all fail their sums before it is called damage."""


@dataclass(slots=True)
class Part:
    """What one peer has of a read: slots, and the rows of the answer that they go to (None: all, in order)."""

    peer: Peer
    rows: Ints | None
    slots: Ints
    descriptors: int = 0

    def of(self, column: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return column if self.rows is None else column[self.rows]


def read(parts: list[Part], out: Bytes, keys: Keys, generations: Words, block_bytes: int, *, verify: bool) -> Verdicts:
    """Copy every part into `out` `[n, slot_bytes]`; the verdict of each row `[n]` (rows of no part: meaningless).

    `keys` `[n, 4]` and `generations` `[n]` say what should be there. Raises `ChecksumMismatch` for bytes that are
    damaged: they keep failing their sums while their generation stays.
    """
    before = [] if verify else [part.peer.generations(part.slots) for part in parts]
    for part in parts:
        part.descriptors = part.peer.read(part.slots, part.rows, out)
    verdicts = _judged(parts, out, keys, generations, block_bytes, verify)
    if not verify:
        for part, first in zip(parts, before, strict=True):
            moved = (part.peer.generations(part.slots) != first) | (first & np.uint64(1) != 0)
            _mark(verdicts, part, moved, Verdict.RECYCLED)
    elif (verdicts == Verdict.TORN).any():
        for part in parts:
            _read_torn_again(part, out, keys, generations, block_bytes, verdicts)
    return verdicts


async def read_afar(
    parts: list[Part],
    out: Bytes,
    keys: Keys,
    generations: Words,
    block_bytes: int,
    deadline: Deadline,
    *,
    verify: bool,
    leased: Callable[[], bool],
) -> Verdicts:
    """As `read`, for parts of which some are reached over the network; the loop goes on meanwhile.

    Without sums the generation is looked at once more after the copy: it was `generations` when it was looked up, it
    only ever grows, and if it is the same afterwards nobody wrote in between. Where all rows are still `leased` after
    the copy nobody may have written either, and that look is left out.
    """
    await _copied(parts, out, deadline)
    verdicts = _judged(parts, out, keys, generations, block_bytes, verify)
    if not verify:
        for part in [] if leased() else parts:
            mine = generations if part.rows is None else generations[part.rows]
            moved = (await _generations(part, part.slots, deadline) != mine) | (mine & np.uint64(1) != 0)
            _mark(verdicts, part, moved, Verdict.RECYCLED)
        return verdicts
    for _ in range(_READ_AGAIN):
        again = [torn for part in parts if (torn := _torn(part, verdicts)) is not None]
        if not again:
            return verdicts
        for part in again:
            rows = part.rows if part.rows is not None else np.arange(len(keys))
            moved = await _generations(part, part.slots, deadline) != generations[rows]
            _mark(verdicts, part, moved, Verdict.RECYCLED)
            part.rows, part.slots = rows[~moved], part.slots[~moved]
        await _copied([part for part in again if len(part.slots)], out, deadline)
        for part in again:
            for row in part.rows.tolist() if part.rows is not None else []:
                one = slice(row, row + 1)
                verdicts[one] = judge(out[one], keys[one], generations[one], block_bytes)
    for part in parts:
        torn = _torn(part, verdicts)
        if torn is not None and torn.rows is not None:
            raise _damaged(int(torn.rows[0]), int(torn.slots[0]), part.peer)
    return verdicts


def _torn(part: Part, verdicts: Verdicts) -> Part | None:
    """The torn rows of a part, as a part."""
    torn = np.flatnonzero(part.of(verdicts) == Verdict.TORN)
    if not len(torn):
        return None
    return Part(part.peer, torn if part.rows is None else part.rows[torn], part.slots[torn])


async def _copied(parts: list[Part], out: Bytes, deadline: Deadline) -> None:
    """All parts at once: what comes over the network is asked for before what is near is copied."""

    async def copy(part: Part) -> None:
        if part.peer.index is None:
            part.descriptors = await cast(Distant, part.peer).fetch(part.slots, part.rows, out, deadline)
        else:
            part.descriptors = part.peer.read(part.slots, part.rows, out)

    results = await asyncio.gather(*(copy(part) for part in parts), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def _generations(part: Part, slots: Ints, deadline: Deadline) -> Words:
    if part.peer.index is None:
        return await cast(Distant, part.peer).fetch_generations(slots, deadline)
    return part.peer.generations(slots)


def _judged(parts: list[Part], out: Bytes, keys: Keys, generations: Words, block_bytes: int, verify: bool) -> Verdicts:
    if len(parts) == 1 and parts[0].rows is None:
        return judge(out, keys, generations, block_bytes, verify=verify)
    copied = np.zeros(len(keys), np.bool_)
    for part in parts:
        copied[part.rows if part.rows is not None else slice(None)] = True
    if copied.all():
        return judge(out, keys, generations, block_bytes, verify=verify)
    verdicts = np.full(len(keys), Verdict.RECYCLED, np.int8)
    starts, lengths = runs_of(copied)
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        rows = slice(start, start + length)
        verdicts[rows] = judge(out[rows], keys[rows], generations[rows], block_bytes, verify=verify)
    return verdicts


def _mark(verdicts: Verdicts, part: Part, which: npt.NDArray[np.bool_], verdict: Verdict) -> None:
    if which.any():
        rows = np.flatnonzero(which) if part.rows is None else part.rows[which]
        verdicts[rows] = verdict


def _read_torn_again(
    part: Part, out: Bytes, keys: Keys, generations: Words, block_bytes: int, verdicts: Verdicts
) -> None:
    """A torn row whose slot has another generation by now met a write; one that keeps its generation is damaged."""
    torn = np.flatnonzero(part.of(verdicts) == Verdict.TORN)
    for at in torn.tolist():
        row = at if part.rows is None else int(part.rows[at])
        slot, one = part.slots[at : at + 1], slice(row, row + 1)
        for _ in range(_READ_AGAIN):
            if part.peer.generations(slot)[0] != generations[row]:
                verdicts[row] = Verdict.RECYCLED
                break
            part.peer.read(slot, np.asarray([row]), out)
            verdicts[one] = judge(out[one], keys[one], generations[one], block_bytes)
            if verdicts[row] != Verdict.TORN:
                break
        else:
            raise _damaged(row, int(slot[0]), part.peer)


def _damaged(row: int, slot: int, peer: Peer) -> ChecksumMismatch:
    return ChecksumMismatch(
        f"block {row} of this get: slot {slot} of shard {peer.facts.get('shard')} holds the right "
        "generation, but its bytes do not have their checksum: they are damaged and were not used"
    )
