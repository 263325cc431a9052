"""Records: what one change of one block looks like in the log, as columns.

A record is a 128-byte header, then the payload, padded to a multiple of 8. The header carries xxh3-64 of the payload,
and its own checksum (seeded by the segment's epoch) covers everything before it, the payload's sum and the *previous
record's checksum* among them. So a record parses only in the segment that it was written for, behind the very record
that it followed: leftovers of a recycled segment, or of a group that failed, never do. `durable` says how much of the
segment had been flushed before the record was written: what is missing before that point was lost, not torn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

RECORD_BYTES = 128
RECORD = np.dtype(
    [
        ("length", "<u4"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("summed", "<u2"),
        ("clock", "<u8"),
        ("key", "<u8", (4,)),
        ("valid", "<u4"),
        ("first", "<u4"),
        ("chain", "V24"),
        ("session", "<u8"),
        ("block_sum", "<u8"),
        ("payload_sum", "<u8"),
        ("payload_bytes", "<u4"),
        ("durable", "<u4"),
        ("previous", "<u8"),
        ("checksum", "<u8"),
    ]
)
SUMMED_BYTES = 120
_PREVIOUS = 112
_ALIGNMENT = 8
FIRST = 1
LAST = 2
"""A batch is one unit: recovery applies it only when its `LAST` record is there, and begins anew at a `FIRST` one."""

Records = npt.NDArray[Any]
"""`[n]` of dtype `RECORD`."""
Buffer = memoryview | bytes | bytearray | npt.NDArray[Any]
"""What a payload may be given as: contiguous bytes."""


class Kind(IntEnum):
    """What a record does to its key."""

    PUT = 1
    """The whole block (or its first `valid` tokens' worth); replaces what the key held."""
    APPEND = 2
    """Only tokens `[first, valid)` of a tail, packed; the tokens before `first` stay as they are."""
    EVICT = 3
    REMOVE = 4
    EXPIRE = 5
    REWRITE = 6
    """As `PUT`, but written by the log itself to free an old segment."""


STORES = (Kind.PUT, Kind.REWRITE)


@dataclass(frozen=True)
class BlockShape:
    """Where a token's bytes lie in a block `[planes, tokens, token_bytes]`: for `[2, heads, block_tokens, head_dim]`,
    planes = 2 · heads and token_bytes = head_dim · item size."""

    planes: int
    tokens: int
    token_bytes: int

    @property
    def block_bytes(self) -> int:
        return self.planes * self.tokens * self.token_bytes

    def append_bytes(self, first: int, valid: int) -> int:
        """Payload bytes of an append of tokens `[first, valid)`."""
        return self.planes * (valid - first) * self.token_bytes

    def sum_of(self, block: Buffer, valid: int) -> int:
        """xxh3-64 of the first `valid` tokens of a whole block, packed: what lies behind them means nothing."""
        return xxhash.xxh3_64_intdigest(self.gather(block, 0, valid).data)

    def gather(self, block: Buffer, first: int, valid: int) -> npt.NDArray[np.uint8]:
        """Tokens `[first, valid)` of a whole block, packed as an append's payload."""
        view = np.frombuffer(block, np.uint8).reshape(self.planes, self.tokens, self.token_bytes)
        return np.ascontiguousarray(view[:, first:valid]).reshape(-1)

    def scatter(self, block: bytearray, packed: Buffer, first: int, valid: int) -> None:
        """The reverse, into `block` (`block_bytes` long)."""
        view = np.frombuffer(block, np.uint8).reshape(self.planes, self.tokens, self.token_bytes)
        view[:, first:valid] = np.frombuffer(packed, np.uint8).reshape(self.planes, valid - first, self.token_bytes)


class Batch:
    """Records that are written, acknowledged and recovered together.

    `payloads` has one buffer a record, or None where a record has none. The buffers must keep their bytes until the
    batch was acknowledged: they are written from where they lie.
    """

    __slots__ = ("headers", "payloads")

    def __init__(self, headers: Records, payloads: Sequence[memoryview | None]) -> None:
        self.headers = headers
        self.payloads = payloads

    def __len__(self) -> int:
        return len(self.headers)

    @property
    def file_bytes(self) -> int:
        """What the batch takes in a segment."""
        return int(self.headers["length"].sum(dtype=np.int64))

    @property
    def payload_bytes(self) -> int:
        return int(self.headers["payload_bytes"].sum(dtype=np.int64))

    @classmethod
    def joined(cls, *batches: Batch) -> Batch:
        """One unit of several: for example the evictions that made room for a put, then the put."""
        # As bytes: NumPy would copy structured rows field by field, which takes many times as long.
        raw = np.concatenate([batch.headers.view(np.uint8) for batch in batches])
        return cls(raw.view(RECORD), [payload for batch in batches for payload in batch.payloads])


def puts(
    keys: npt.ArrayLike,
    payloads: Sequence[Buffer],
    *,
    clock: npt.ArrayLike,
    valid: npt.ArrayLike,
    chain: npt.ArrayLike | bytes = bytes(24),
    session: npt.ArrayLike = 0,
    sums: npt.ArrayLike | None = None,
    kind: Kind = Kind.PUT,
) -> Batch:
    """Whole blocks. `keys` `[n, 4]` u64; the other columns `[n]` or one value for all; `sums` = xxh3-64 of each payload
    where the caller knows it (a slot's `data_sum`), else it is computed by the log's thread."""
    headers = _headers(keys, kind, clock)
    headers["valid"] = valid
    headers["chain"] = _chains(chain)
    headers["session"] = session
    return _with_payloads(headers, payloads, sums)


def appends(
    keys: npt.ArrayLike,
    payloads: Sequence[Buffer],
    *,
    clock: npt.ArrayLike,
    first: npt.ArrayLike,
    valid: npt.ArrayLike,
    chain: npt.ArrayLike | bytes = bytes(24),
    block_sums: npt.ArrayLike,
    session: npt.ArrayLike = 0,
) -> Batch:
    """New tokens `[first, valid)` of tails; payloads packed by `BlockShape.gather`, `block_sums` by `BlockShape.sum_of`
    the block as it is now: recovery puts it together from several records, and compares."""
    headers = _headers(keys, Kind.APPEND, clock)
    headers["first"] = first
    headers["valid"] = valid
    headers["chain"] = _chains(chain)
    headers["session"] = session
    headers["block_sum"] = block_sums
    return _with_payloads(headers, payloads, None)


def drops(keys: npt.ArrayLike, kind: Kind, *, clock: npt.ArrayLike) -> Batch:
    """Blocks that are no longer there: `kind` is `EVICT`, `REMOVE` or `EXPIRE`."""
    if kind not in (Kind.EVICT, Kind.REMOVE, Kind.EXPIRE):
        raise ValueError(f"{kind.name} does not drop a block")
    headers = _headers(keys, kind, clock)
    return Batch(headers, [None] * len(headers))


def _headers(keys: npt.ArrayLike, kind: Kind, clock: npt.ArrayLike) -> Records:
    columns = np.asarray(keys, np.uint64).reshape(-1, 4)
    headers = np.zeros(len(columns), RECORD)
    headers["key"] = columns
    headers["kind"] = kind
    headers["clock"] = clock
    headers["length"] = RECORD_BYTES
    return headers


def _chains(chain: npt.ArrayLike | bytes) -> npt.NDArray[Any]:
    if isinstance(chain, bytes):
        return np.frombuffer(chain, "V24")[0]  # type: ignore[no-any-return]
    column = np.ascontiguousarray(chain)
    return column if column.dtype == np.dtype("V24") else column.view("V24").reshape(-1)


def _with_payloads(headers: Records, payloads: Sequence[Buffer], sums: npt.ArrayLike | None) -> Batch:
    if len(payloads) != len(headers):
        raise ValueError(f"{len(payloads)} payloads for {len(headers)} records")
    views = [flat(payload) for payload in payloads]
    sizes = np.fromiter((view.nbytes for view in views), np.int64, len(views))
    headers["payload_bytes"] = sizes
    headers["length"] = RECORD_BYTES + (sizes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
    if sums is not None:
        headers["payload_sum"] = sums
        headers["summed"] = 1
    return Batch(headers, views)


def flat(buffer: Buffer) -> memoryview:
    """Any contiguous buffer as bytes, not copied. Raises ValueError for one that is not contiguous."""
    view = memoryview(buffer)  # type: ignore[arg-type]  # an ndarray is a buffer
    if not view.c_contiguous:
        raise ValueError("a record's payload must be one contiguous buffer")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def seal(headers: Records, payloads: Sequence[memoryview | None], epoch: int, previous: int, durable: int) -> int:
    """Fill in the sums of `headers` for the segment of `epoch`, behind a record whose checksum was `previous`; all of
    the segment before offset `durable` has been flushed.

    Returns the last checksum. `headers` must be contiguous; they are changed in place.
    """
    digest = xxhash.xxh3_64_intdigest
    missing = np.flatnonzero((headers["summed"] == 0) & (headers["payload_bytes"] > 0))
    for row in missing.tolist():
        headers["payload_sum"][row] = digest(payloads[row] or b"")
    headers["summed"] = 0
    headers["durable"] = durable
    raw = headers.view(np.uint8).data
    for start in range(0, len(raw), RECORD_BYTES):
        raw[start + _PREVIOUS : start + SUMMED_BYTES] = previous.to_bytes(8, "little")
        previous = digest(raw[start : start + SUMMED_BYTES], seed=epoch)
        raw[start + SUMMED_BYTES : start + RECORD_BYTES] = previous.to_bytes(8, "little")
    return previous


def checksum(raw: memoryview, epoch: int) -> int:
    """What the checksum of a header's 128 bytes should be."""
    return xxhash.xxh3_64_intdigest(raw[:SUMMED_BYTES], seed=epoch)


def payload_sum(payload: memoryview | bytes) -> int:
    return xxhash.xxh3_64_intdigest(payload)
