"""What a reader does to a copy of slots before it believes a byte of it."""

from __future__ import annotations

import struct
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import xxhash

from kvstore.arena import headers_of
from kvstore.header import HEADER_BYTES, SUMMED_BYTES, Bytes, header_sums, sums
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


_GENERATION, _CLOCK, _DATA_SUM, _HEADER_SUM = 4, 5, 10, 11
"""Words of `header.HEADER`."""
_HEAD_BYTES = 96
_HEAD = struct.Struct("<4QQQII24sQQ")
"""The first 96 bytes of `header.HEADER`."""


def one_good(slot: Bytes, key: list[int], generation: int, block_bytes: int, *, verify: bool) -> int | None:
    """The clock if `judge` would find a slot `[slot_bytes]` OK, else None: without columns, since a dozen array
    operations of a microsecond each are nothing for a thousand blocks and most of the time for one."""
    copied = memoryview(slot)  # type: ignore[arg-type]  # arrays have the buffer protocol
    *found, seen, clock, _, _, _, data_sum, header_sum = _HEAD.unpack_from(copied)
    if seen != generation or seen & 1 or found != key:
        return None
    if verify:
        if xxhash.xxh3_64_intdigest(copied[:SUMMED_BYTES]) != header_sum:
            return None
        if xxhash.xxh3_64_intdigest(copied[HEADER_BYTES : HEADER_BYTES + block_bytes]) != data_sum:
            return None
    return int(clock)


def all_good(slots: Bytes, keys: Keys, generations: Words, block_bytes: int, *, verify: bool) -> int | None:
    """The newest clock if `judge` would find every row OK, else None: a third of its time for a few dozen rows."""
    head = slots[:, :_HEAD_BYTES].copy().view(np.uint64)
    # As bytes: a comparison of columns takes twice as long for a few dozen rows.
    if head[:, _GENERATION].tobytes() != generations.tobytes() or head[:, :4].tobytes() != keys.tobytes():
        return None
    if verify and not _sums_hold(slots, head, block_bytes):
        return None
    return int(head[:, _CLOCK].max())


def _sums_hold(slots: Bytes, head: Words, block_bytes: int) -> bool:
    digest, step = xxhash.xxh3_64_intdigest, slots.shape[1]
    copied = memoryview(slots.reshape(-1))  # type: ignore[arg-type]  # arrays have the buffer protocol
    firsts = range(0, len(slots) * step, step)
    if [digest(copied[at : at + SUMMED_BYTES]) for at in firsts] != head[:, _HEADER_SUM].tolist():
        return False
    data = [digest(copied[at + HEADER_BYTES : at + HEADER_BYTES + block_bytes]) for at in firsts]
    return bool(data == head[:, _DATA_SUM].tolist())
