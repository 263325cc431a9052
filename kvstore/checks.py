"""What a reader does to a copy of slots before it believes a byte of it."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kvstore.arena import headers_of
from kvstore.header import HEADER_BYTES, Bytes, header_sums, sums
from kvstore.keys import Keys

Words = npt.NDArray[np.uint64]


class Verdict(IntEnum):
    """Of one copied slot."""

    OK = 0
    RECYCLED = 1
    """Another generation or key: the slot went to somebody else, or is being written."""
    TORN = 2
    """The right header, but header or data do not have their sums: the copy met a write, or the bytes are damaged.
    Read again: if the same generation still fails, it is damage."""


def judge(
    slots: Bytes, keys: Keys, generations: Words, block_bytes: int, *, verify: bool = True
) -> npt.NDArray[np.int8]:
    """A `Verdict` for each row of `slots` `[n, slot_bytes]`, copied in one transfer from where `keys [n, 4]` lay with
    `generations [n]`. `verify`: check both sums (else only key and generation)."""
    rows = headers_of(slots)
    same = (rows["generation"] == generations) & (rows["key"] == keys).all(axis=1)
    verdicts = np.where(same, Verdict.OK, Verdict.RECYCLED).astype(np.int8)
    if verify:
        data = slots[:, HEADER_BYTES : HEADER_BYTES + block_bytes]
        whole = (rows["data_sum"] == sums(data)) & (rows["header_sum"] == header_sums(slots))
        verdicts[same & ~whole] = Verdict.TORN
    return verdicts
