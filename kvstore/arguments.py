"""What callers of a client pass, as the columns that go on the wire; whatever does not mean one thing is refused.

All functions raise `BadRequest` with the argument's name. Nothing is cast that could lose something: a fraction is no
count of tokens, a list of keys no column.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, SupportsInt

import numpy as np
import numpy.typing as npt

from kvstore.clock import MAX_CLOCK
from kvstore.errors import BadRequest
from kvstore.header import Bytes
from kvstore.keys import DIGEST_BYTES, Keys
from kvstore.layout import Layout
from kvstore.messages import Durability

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

MOST_MS = (1 << 32) - 1
"""Of a length of time on the wire: 49 days."""
_MOST = (1 << 63) - 1
_MOST_SESSION = (1 << 64) - 1


def key_columns(keys: Any, name: str = "keys") -> Keys:
    """A uint64 array `[n, 4]`."""
    if not isinstance(keys, np.ndarray) or keys.ndim != 2 or keys.shape[1] != 4 or keys.dtype != np.uint64:
        raise BadRequest(f"{name} are a uint64 array [n, 4], not {_told(keys)}")
    return keys


def counts(name: str, value: Any, n: int, *, least: int = 0, most: int = _MOST) -> Ints:
    """Whole numbers `least` … `most` `[n]`; one number stands for all rows."""
    rows = whole(name, value, n, least=least, most=most)
    return np.full(n, rows, np.int64) if isinstance(rows, int) else rows.astype(np.int64, copy=False)


def clocks(name: str, value: Any, n: int) -> Words:
    """Commit clocks `[n]`; one stands for all rows."""
    rows = whole(name, value, n, most=MAX_CLOCK)
    return np.full(n, rows, np.uint64) if isinstance(rows, int) else rows.astype(np.uint64, copy=False)


def whole(name: str, value: Any, n: int, *, least: int = 0, most: int = _MOST) -> int | npt.NDArray[np.integer[Any]]:
    """A whole number `least` … `most`, or a column `[n]` of such, as it is."""
    if isinstance(value, Integral):
        return whole_number(name, value, least=least, most=most)
    rows = _listed(value)
    if rows is None or (rows.dtype.kind not in "iu" and rows.size):
        raise BadRequest(f"{name}: whole numbers are expected, not {_told(value)}")
    if rows.shape != (n,):
        raise BadRequest(f"{name}: one number or a column [{n}] is expected, not {_told(rows)}")
    if n and not (int(rows.min()) >= least and int(rows.max()) <= most):
        raise BadRequest(f"{name} must lie in {least} … {most}")
    return rows


def whole_number(name: str, value: Any, *, least: int = 0, most: int = _MOST) -> int:
    """One whole number `least` … `most`."""
    if not isinstance(value, Integral) or value is True or value is False:
        raise BadRequest(f"{name} must be a whole number, not {_told(value)}")
    if not least <= int(value) <= most:
        raise BadRequest(f"{name} must lie in {least} … {most}, not {int(value)}")
    return int(value)


def _listed(value: Any) -> npt.NDArray[Any] | None:
    if isinstance(value, list | tuple):
        try:
            return np.asarray(value)
        except (ValueError, OverflowError):
            return None
    return value if isinstance(value, np.ndarray) else None


def digest_rows(name: str, value: Any, rows: int | None = None) -> npt.NDArray[np.uint8]:
    """Chain digests, a uint8 array `[rows, 24]`."""
    fits = isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.shape[1:] == (DIGEST_BYTES,)
    if not fits or (rows is not None and len(value) != rows):
        wanted = "m" if rows is None else rows
        raise BadRequest(f"{name} are a uint8 array [{wanted}, {DIGEST_BYTES}], not {_told(value)}")
    found: npt.NDArray[np.uint8] = value
    return found


def session_number(value: SupportsInt | Any) -> int:
    """The number of a session, or of its handle; 0: none."""
    if type(value) is not int and not isinstance(value, Integral):
        if not (hasattr(value, "number") and hasattr(value, "__int__")):
            raise BadRequest(f"a session is its handle or its number, not {_told(value)}")
        value = int(value)
    return whole_number("a session's number", value, most=_MOST_SESSION)


def durability_of(value: Any) -> Durability:
    try:
        return Durability(value)
    except ValueError:
        raise BadRequest(f"durability is one of {', '.join(map(str, Durability))}, not {_told(value)}") from None


def as_blocks(data: Any, layout: Layout) -> Bytes:
    """`[n, block_bytes]` of bytes for `[n, *block_shape]` of elements, or of their raw bytes or bits."""
    if not isinstance(data, np.ndarray):
        raise BadRequest(f"blocks are an array [n, ...], not {_told(data)}")
    if data.ndim < 2:
        raise BadRequest(f"blocks are [n, ...] arrays, not {data.ndim}-dimensional")
    if not _same_elements(data.dtype, layout):
        raise BadRequest(f"blocks have elements of {layout.dtype} in this layout (or raw bytes), not {data.dtype}")
    if not len(data):
        return np.zeros((0, layout.block_bytes), np.uint8)
    size = data.nbytes // len(data)
    if size != layout.block_bytes:
        raise BadRequest(f"a block has {layout.block_bytes} bytes in this layout, not {size}")
    return np.ascontiguousarray(data).reshape(len(data), -1).view(np.uint8)


def require_one_block_a_key(keys: Keys, data: Bytes) -> None:
    """For rows that go in several messages (of one, the shard sees to it): a key names one block."""
    names = np.ascontiguousarray(keys).view("V32")[:, 0]
    _, first, which = np.unique(names, return_index=True, return_inverse=True)
    for row in np.flatnonzero(first[which] != np.arange(len(keys))).tolist():
        if (data[row] != data[first[which[row]]]).any():
            raise BadRequest(f"row {row} names a key of an earlier row for another block")


def _same_elements(dtype: np.dtype[Any], layout: Layout) -> bool:
    """Raw bytes, the layout's own elements, or raw bits of their size (also as extension types: bfloat16, float8)."""
    if dtype in (np.dtype(np.uint8), np.dtype(np.int8), layout.numpy_dtype):
        return True
    bits = dtype.kind in "iu" or dtype.name == f"void{8 * dtype.itemsize}"
    return dtype.itemsize == layout.item_bytes and (bits or dtype.name.startswith(layout.dtype))


def room_for(out: Any, n: int, slot_bytes: int) -> Bytes:
    """Where a get of `n` blocks goes."""
    fits = isinstance(out, np.ndarray) and out.shape == (n, slot_bytes) and out.dtype == np.uint8
    if not fits or not out.flags.c_contiguous or not out.flags.writeable:
        kind = "" if not isinstance(out, np.ndarray) or out.flags.writeable else "read-only "
        raise BadRequest(
            f"a get of {n} blocks goes into a writable contiguous uint8 array [{n}, {slot_bytes}] (Client.buffer), "
            f"not {kind}{_told(out)}"
        )
    found: Bytes = out
    return found


def require_targets(targets: Any) -> Any:
    """A text, a path, or a sequence of texts."""
    if isinstance(targets, str | Path):
        return targets
    if not isinstance(targets, Sequence) or not all(isinstance(word, str) for word in targets):
        raise BadRequest(f"targets are host:port,host:port or the path of a cluster file, not {_told(targets)}")
    return targets


def _told(value: Any) -> str:
    """What it is, without what is in it."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    return "None" if value is None else type(value).__name__
