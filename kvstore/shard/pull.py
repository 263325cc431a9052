"""What a put asks of the staging arena that it is pulled from, and of what has arrived."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvstore.arena import Arena
from kvstore.errors import BadRequest, ChecksumMismatch, StagingRejected

Slots = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


class Afar(Protocol):
    """A staging arena that is not mapped here: what is put has to be brought here first."""

    def bring(self, rows: Slots, left_s: float) -> AbstractAsyncContextManager[tuple[Arena, Slots]]:
        """The blocks of staging slots `rows`: an arena that is mapped, and the slots there. Entering it takes until the
        transfer has ended for certain; `left_s` bounds only the wait for room. Raises `StagingRejected`, …"""
        ...


def require_staging(staging: Arena | None, rows: Slots, block_bytes: int) -> Arena:
    """The caller's arena, if `rows` lie in it and its blocks are ours; raises `StagingRejected`."""
    if staging is None:
        raise StagingRejected("this client has no staging arena: register one at the shard's door first")
    if staging.block_bytes != block_bytes:
        raise StagingRejected(f"the staging arena has blocks of {staging.block_bytes} bytes, the pool of {block_bytes}")
    if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < len(staging)):
        raise StagingRejected(f"a staging slot lies outside the arena of {len(staging)} slots")
    return staging


def require_sums(found: Words, stated: Words) -> None:
    """Raise `ChecksumMismatch` when what arrived is not what the caller summed."""
    wrong = np.flatnonzero(found != stated)
    if len(wrong):
        raise ChecksumMismatch(
            f"{len(wrong)} of {len(found)} blocks do not have the checksum that was stated (the first is number "
            f"{int(wrong[0])}): the staging run changed while it was pulled, or was not filled"
        )


def require_rows(rows: int, **columns: npt.NDArray[np.generic]) -> None:
    """Raise `BadRequest` naming the first column that has not `rows` rows."""
    for name, column in columns.items():
        if len(column) != rows:
            raise BadRequest(f"column {name!r} has {len(column)} rows, not {rows}")


def require_one_block_a_key(keys: npt.NDArray[np.uint64], sums: Words) -> None:
    """Raise `BadRequest` where a key is named twice for blocks that differ: which of them it names would be chance."""
    if first_of_each(keys).all():
        return
    seen: dict[bytes, int] = {}
    for row, stated in enumerate(sums.tolist()):
        if seen.setdefault(keys[row].tobytes(), stated) != stated:
            raise BadRequest(f"row {row} names a key of an earlier row for another block")


def first_of_each(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Whether each row of `keys` `[n, 4]` is the first with its key."""
    if not len(keys):
        return np.zeros(0, np.bool_)
    if len(np.unique(keys[:, 0] ^ keys[:, 3])) == len(keys):
        return np.ones(len(keys), np.bool_)
    seen: set[bytes] = set()
    fresh = np.zeros(len(keys), np.bool_)
    raw = np.ascontiguousarray(keys).tobytes()
    for row in range(len(keys)):
        key = raw[row * 32 : row * 32 + 32]
        fresh[row] = key not in seen
        seen.add(key)
    return fresh
