"""One row of a batch: the tokens whose KV there is, and the block that is being filled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvstore.header import Bytes
from kvstore.keys import DIGEST_BYTES, Chain, step_digest
from kvstore.layout import Layout

Digests = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of all columns, `data` `[columns, block_bytes]`: a full one, or the partial one at the end.

    `digests` `[valid, 24]` is the chain after each of its tokens, `parent` the chain before the first.
    """

    index: int
    parent: bytes
    digests: Digests
    data: Bytes

    @property
    def valid(self) -> int:
        return len(self.digests)

    @property
    def digest(self) -> bytes:
        """The chain after its last token: the content key of a full block."""
        return bytes(self.digests[-1].tobytes())


class History:
    """A token chain with the KV of its last, partial block. Full blocks leave it as they are completed."""

    def __init__(self, root: bytes, layout: Layout) -> None:
        self.tokens: list[int] = []
        self.chain = Chain(root, layout.block_tokens)
        self._layout = layout
        self._partial = self._empty()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def filled(self) -> int:
        """Tokens in the partial block."""
        return len(self.tokens) % self._layout.block_tokens

    def begin(self, tokens: Sequence[int], partial: Bytes | None) -> None:
        """Take over `tokens`, with the KV of those behind the last full block: `[columns, block_bytes]`, or None."""
        self.tokens = list(tokens)
        self.chain = Chain(self.chain.root, self._layout.block_tokens)
        self.chain.extend(self.tokens)
        self._partial = self._empty()
        if partial is not None:
            have = partial.reshape(self._partial.shape)
            self._partial[..., : self.filled, :] = have[..., : self.filled, :]

    def extend(self, tokens: Sequence[int], keys: Bytes, values: Bytes) -> list[Piece]:
        """Append tokens with their KV, `[layers, KV heads, tokens, head bytes]` each; the blocks that became full."""
        layers, groups, heads = self._layout.layers, self._layout.head_groups, self._layout.heads
        size = self._layout.block_tokens
        split = (layers, groups, heads, len(tokens), keys.shape[-1])
        states = (keys.reshape(split), values.reshape(split))
        full: list[Piece] = []
        at = 0
        while at < len(tokens):
            first = self.filled
            take = min(size - first, len(tokens) - at)
            for side, state in enumerate(states):
                self._partial[:, :, side, :, first : first + take] = state[:, :, :, at : at + take]
            before = self.chain.parent
            self.tokens += tokens[at : at + take]
            self.chain.extend(tokens[at : at + take])
            at += take
            if self.filled == 0:
                full.append(self._piece(len(self.tokens) // size - 1, before, self.tokens[-size:], self._partial))
                self._partial = self._empty()
        return full

    def partial(self) -> Piece | None:
        """A copy of the block at the end, if it has tokens."""
        if not self.filled:
            return None
        index = len(self.chain.digests)
        return self._piece(index, self.chain.parent, self.tokens[-self.filled :], self._partial.copy())

    def _piece(self, index: int, parent: bytes, tokens: Sequence[int], data: Bytes) -> Piece:
        return Piece(index, parent, digests_after(parent, tokens), data.reshape(-1, self._layout.block_bytes))

    def _empty(self) -> Bytes:
        """`[layers, head groups, 2, heads, block_tokens, head bytes]`, zeroed."""
        layout = self._layout
        head_bytes = layout.head_dim * layout.item_bytes
        return np.zeros((layout.layers, layout.head_groups, 2, layout.heads, layout.block_tokens, head_bytes), np.uint8)


def digests_after(parent: bytes, tokens: Sequence[int]) -> Digests:
    """The chain after each of `tokens` that follow `parent`: `[tokens, 24]`."""
    row = np.asarray(tokens, np.int64)
    joined = b"".join(step_digest(parent, row[: count + 1]) for count in range(len(row)))
    return np.frombuffer(joined, np.uint8).reshape(-1, DIGEST_BYTES)
