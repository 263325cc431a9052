"""The shape of a model's KV in the store."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields

import numpy as np

from kvstore.errors import BadRequest, LayoutMismatch
from kvstore.header import HEADER_BYTES

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3": 1, "float8_e5m2": 1, "uint8": 1}
_SLOT_ALIGNMENT = 128
_LONGEST_NAME = 256


@dataclass(frozen=True)
class Layout:
    """Model, dtype and geometry of the blocks of one pool.

    A block is `[2, heads, block_tokens, head_dim]` (K, then V) of one layer and one head group. `heads` counts the KV
    heads of one group, so a model has `head_groups * heads` KV heads. `salt` is the *fingerprint* of the tenant's salt,
    never the salt. Raises `BadRequest` for a geometry that cannot be.
    """

    model_id: str
    layers: int = 1
    head_groups: int = 1
    heads: int = 1
    head_dim: int = 64
    block_tokens: int = 16
    window_tokens: int = 512
    dtype: str = "float16"
    salt: str = ""

    def __post_init__(self) -> None:
        for name in ("model_id", "salt", "dtype"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.isprintable() or len(value) > _LONGEST_NAME:
                raise BadRequest(f"layout field {name!r} must be a text of at most {_LONGEST_NAME}, not {value!r:.80}")
        for name in ("layers", "head_groups", "heads", "head_dim", "block_tokens", "window_tokens"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise BadRequest(f"layout field {name!r} must be a positive integer, not {value!r}")
        if self.dtype not in _ITEM_BYTES:
            raise BadRequest(f"layout field 'dtype' must be one of {', '.join(_ITEM_BYTES)}, not {self.dtype!r}")
        if self.window_tokens % self.block_tokens:
            raise BadRequest(f"window_tokens {self.window_tokens} is no multiple of block_tokens {self.block_tokens}")
        if self.layers > 0xFFFF or self.head_groups > 0xFFFF:
            raise BadRequest("a key has 16 bits each for layer and head group")

    @property
    def item_bytes(self) -> int:
        return _ITEM_BYTES[self.dtype]

    @property
    def block_shape(self) -> tuple[int, int, int, int]:
        return (2, self.heads, self.block_tokens, self.head_dim)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block's data."""
        return 2 * self.heads * self.block_tokens * self.head_dim * self.item_bytes

    @property
    def slot_bytes(self) -> int:
        """Header and data of one block, rounded up so that every slot starts on a cache-line pair."""
        return -(-(HEADER_BYTES + self.block_bytes) // _SLOT_ALIGNMENT) * _SLOT_ALIGNMENT

    @property
    def window_blocks(self) -> int:
        return self.window_tokens // self.block_tokens

    @property
    def numpy_dtype(self) -> np.dtype[np.generic]:
        """The NumPy type of an element; 8-bit floats and bfloat16, which NumPy lacks, as raw integers."""
        raw = {"bfloat16": "uint16", "float8_e4m3": "uint8", "float8_e5m2": "uint8"}
        return np.dtype(raw.get(self.dtype, self.dtype))

    def as_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Layout:
        try:
            values = json.loads(text)
            return cls(**values)
        except (ValueError, TypeError, RecursionError) as error:
            raise BadRequest(f"not a layout: {error}") from None

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that differ when any field differs."""
        return hashlib.blake2b(self.as_json().encode(), digest_size=6).hexdigest()

    def require_same(self, theirs: Layout) -> None:
        """Raise `LayoutMismatch` naming the first field in which `theirs` differs; a salt's value is not shown."""
        for field in fields(self):
            ours, other = getattr(self, field.name), getattr(theirs, field.name)
            if ours != other:
                if field.name == "salt":
                    raise LayoutMismatch("layout field 'salt': the client's tenant salt is not this store's")
                raise LayoutMismatch(field.name, ours, other)
