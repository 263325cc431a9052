"""LMCache's objects as blocks: an object takes as many consecutive blocks as its bytes need.

Its key is a digest of everything that LMCache tells objects apart by; its size stands where a block of tokens has the
digest of its chain, so that an object read back into a buffer of another size is a miss and never a part of one.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvstore.header import Headers
from kvstore.keys import DIGEST_BYTES, Keys, block_keys

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]


class Name(Protocol):
    """LMCache's `ObjectKey`."""

    chunk_hash: bytes
    model_name: str
    kv_rank: int
    object_group_id: int
    cache_salt: str


def digest_of(name: Name) -> bytes:
    """24 bytes; the salt and every other field is in it, each with its length."""
    made = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"kvstore-lmcache")
    numbers = f"{name.kv_rank}/{name.object_group_id}".encode()
    for part in (name.chunk_hash, name.model_name.encode(), numbers, name.cache_salt.encode()):
        made.update(len(part).to_bytes(8, "little") + part)
    return made.digest()


def keys_of(name: Name, blocks: int) -> Keys:
    """Keys `[blocks, 4]` of one object."""
    return block_keys([digest_of(name)] * blocks, 0, 0)


def first_keys(names: list[Name]) -> Keys:
    """The key of each object's first block `[n, 4]`: where it is, the others are (one run, evicted as one)."""
    keys = block_keys([digest_of(name) for name in names], 0, 0)
    keys[:, 3] &= np.uint64(0xFFFFFFFF)
    return keys


def all_keys(names: list[Name], counts: npt.NDArray[np.int64]) -> Keys:
    """The keys of all blocks of objects that take `counts` `[n]` blocks."""
    keys = np.repeat(first_keys(names), counts, axis=0)
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    keys[:, 3] |= (np.arange(len(keys)) - firsts).astype(np.uint64) << np.uint64(32)
    return keys


def blocks_for(size: int, block_bytes: int) -> int:
    return max(1, -(-size // block_bytes))


def split(data: Bytes, block_bytes: int) -> Bytes:
    """`[n, block_bytes]`, the last row filled up with zeros."""
    rows = np.zeros((blocks_for(len(data), block_bytes), block_bytes), np.uint8)
    rows.reshape(-1)[: len(data)] = data
    return rows


def size_marks(sizes: list[int]) -> Bytes:
    """`[n, 24]`: what stands in a block's header for the size of its object."""
    marks = np.zeros((len(sizes), DIGEST_BYTES), np.uint8)
    marks[:, :8] = np.asarray(sizes, "<u8").view(np.uint8).reshape(-1, 8)
    return marks


def sizes_in(headers: Headers) -> npt.NDArray[np.uint64]:
    """The sizes that `size_marks` put there."""
    raw = np.ascontiguousarray(headers["chain"]).view(np.uint8).reshape(len(headers), DIGEST_BYTES)
    return np.ascontiguousarray(raw[:, :8]).view("<u8")[:, 0]
