"""The 128 bytes before a block's data: sealed by the shard, checked by every reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

HEADER_BYTES = 128

HEADER = np.dtype(
    {
        "names": ["key", "generation", "clock", "valid", "flags", "chain", "data_sum", "header_sum"],
        "formats": ["(4,)<u8", "<u8", "<u8", "<u4", "<u4", "V24", "<u8", "<u8"],
        "offsets": [0, 32, 40, 48, 52, 56, 80, 88],
        "itemsize": HEADER_BYTES,
    }
)
SUMMED_BYTES = 88
"""`header_sum` covers the header's bytes before it, `data_sum` among them: so it covers key, generation, clock, valid
tokens and data, and the data is hashed only once."""

FLAG_TAIL = 1

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Headers = npt.NDArray[Any]
"""`[n]` of dtype `HEADER`."""


def sums(data: Bytes | list[Bytes]) -> Words:
    """xxh3-64 of each row of `data` `[n, bytes]` (rows contiguous)."""
    digest: Callable[[Any], int] = xxhash.xxh3_64_intdigest  # arrays have the buffer protocol
    return np.fromiter((digest(row) for row in data), np.uint64, len(data))


def header_sums(slots: Bytes) -> Words:
    """The sum that each header of `slots` `[n, slot_bytes]` should carry."""
    digest = xxhash.xxh3_64_intdigest
    return np.fromiter((digest(row) for row in slots[:, :SUMMED_BYTES]), np.uint64, len(slots))
