"""Content-addressed keys: which block holds the KV of which tokens.

The chain digest of a block covers everything before it: BLAKE2b(parent digest, token ids). The root covers the tenant's
salt, the model, the adapter and multimodal ids, so that equal tokens of two tenants never share a key. A key is
digest (24 bytes), layer, head group and block index: 32 bytes, seen as four 64-bit words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore.errors import BadRequest

DIGEST_BYTES = 24
KEY_WORDS = 4

Keys = npt.NDArray[np.uint64]
"""`[n, 4]`: one key a row."""

_PERSON_BLOCK = b"kv.block"
_PERSON_ROOT = b"kv.root"
_PERSON_TAIL = b"kv.tail"


def salt_fingerprint(salt: bytes) -> str:
    """What a layout says about a tenant's salt: enough to tell two apart, not enough to find it."""
    return hashlib.blake2b(salt, digest_size=8, person=b"kv.salt").hexdigest() if salt else ""


def root_digest(model_id: str, *, salt: bytes = b"", adapter: str = "", media: Sequence[str] = ()) -> bytes:
    """The digest before the first token. Each part is length-prefixed, so that no two lists of parts collide."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES, person=_PERSON_ROOT)
    for part in (model_id.encode(), salt, adapter.encode(), *(item.encode() for item in media)):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def step_digest(parent: bytes, tokens: npt.NDArray[np.int64]) -> bytes:
    """The digest after `tokens` (int64, any count ≥ 1) that follow `parent`."""
    digest = hashlib.blake2b(parent, digest_size=DIGEST_BYTES, person=_PERSON_BLOCK)
    digest.update(tokens.tobytes())
    return digest.digest()


def tail_digest(parent: bytes, session: int) -> bytes:
    """The digest under which a session's partial block after `parent` is found: its place, not its content."""
    return hashlib.blake2b(
        parent + session.to_bytes(8, "little"), digest_size=DIGEST_BYTES, person=_PERSON_TAIL
    ).digest()


class Chain:
    """A token chain cut into blocks: digests of its full blocks, and of each token of its partial tail.

    `extend` is cheap to call per token; the digests of full blocks never change.
    """

    def __init__(self, root: bytes, block_tokens: int) -> None:
        self.root = root
        self.block_tokens = block_tokens
        self.digests: list[bytes] = []
        self._tail: list[int] = []

    def extend(self, tokens: Sequence[int] | npt.NDArray[Any]) -> None:
        """Append token ids (integers); raises `BadRequest` when they are not."""
        try:
            new = np.asarray(tokens, np.int64)
        except (TypeError, ValueError, OverflowError):
            raise BadRequest("token ids must be 64-bit integers") from None
        if new.ndim != 1:
            raise BadRequest(f"token ids must be one row, not {new.ndim} dimensions")
        pending = np.concatenate([np.asarray(self._tail, np.int64), new])
        full = len(pending) // self.block_tokens
        for i in range(full):
            self.digests.append(step_digest(self.parent, pending[i * self.block_tokens : (i + 1) * self.block_tokens]))
        self._tail = pending[full * self.block_tokens :].tolist()

    def __len__(self) -> int:
        """Tokens in the chain."""
        return len(self.digests) * self.block_tokens + len(self._tail)

    @property
    def parent(self) -> bytes:
        """The digest after the last full block."""
        return self.digests[-1] if self.digests else self.root

    @property
    def tail_tokens(self) -> int:
        return len(self._tail)

    def tail_digests(self) -> list[bytes]:
        """The digest after each token of the tail: `[i]` covers the tail's first `i + 1` tokens."""
        tokens = np.asarray(self._tail, np.int64)
        return [step_digest(self.parent, tokens[: i + 1]) for i in range(len(tokens))]


def block_keys(digests: Sequence[bytes], layer: int, group: int, *, first_index: int = 0) -> Keys:
    """Keys of consecutive blocks of one layer and head group: `[n, 4]`."""
    rows = np.zeros((len(digests), 32), np.uint8)
    if digests:
        rows[:, :DIGEST_BYTES] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)
    place = rows.view(np.uint64)
    index = np.arange(first_index, first_index + len(digests), dtype=np.uint64)
    place[:, 3] = np.uint64(layer) | np.uint64(group) << np.uint64(16) | index << np.uint64(32)
    return place


def parts(keys: Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Layer, head group and block index of each key."""
    word = keys[:, 3]
    layer = (word & np.uint64(0xFFFF)).astype(np.int64)
    group = (word >> np.uint64(16) & np.uint64(0xFFFF)).astype(np.int64)
    return layer, group, (word >> np.uint64(32)).astype(np.int64)


_MIX_A = np.uint64(0x9E3779B97F4A7C15)
_MIX_B = np.uint64(0xBF58476D1CE4E5B9)
_MIX_C = np.uint64(0x94D049BB133111EB)


def mix(keys: Keys, seed: int = 0) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each key, for buckets and placement only (never for identity).

    splitmix64's finaliser (Steele, Lea, Flood 2014) over the folded words: a whole column at once, where xxh3 would be
    one call a key (0.3 µs each: more than the budget of a thousand-key lookup).
    """
    word: npt.NDArray[np.uint64] = keys[:, 3] * _MIX_A
    word ^= keys[:, 0]
    word ^= keys[:, 1] + np.uint64(seed * int(_MIX_B) & 0xFFFFFFFFFFFFFFFF)
    word ^= word >> np.uint64(30)
    word *= _MIX_B
    word ^= word >> np.uint64(27)
    word *= _MIX_C
    word ^= word >> np.uint64(31)
    return word
