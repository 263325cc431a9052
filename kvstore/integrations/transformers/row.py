"""A row of the batch between forward passes and the store."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kvstore.header import Bytes
from kvstore.integrations.transformers.history import History, Piece
from kvstore.integrations.transformers.layers import StoreLayer
from kvstore.layout import Layout


class Row:
    """`pad` columns of padding, then the row's tokens. `known`: digests of full blocks that need no writing.

    `ends`: tokens that end a row, and the token that a row which has ended is fed while others go on. Those are in no
    chain: the row's history stays as it ended.
    """

    def __init__(
        self, root: bytes, layout: Layout, pad: int, known: set[bytes], ends: tuple[frozenset[int], int | None]
    ) -> None:
        self.pad = pad
        self.history = History(root, layout)
        self.ended = False
        self._layout = layout
        self._known = known
        self._ends, self._filler = ends

    def begin(self, tokens: Sequence[int], partial: Bytes | None) -> None:
        """Its first tokens, which are in the layers already."""
        self.history.begin(tokens, partial)
        self.ended = False

    def extend(self, tokens: Sequence[int], keys: Bytes, values: Bytes) -> list[Piece]:
        """Tokens that a pass has computed, with `[layers, KV heads, tokens, head bytes]`; full blocks to be written."""
        last = self.history.tokens[-1:] or [-1]
        if len(tokens) == 1 and tokens[0] == self._filler and last[0] in self._ends:
            self.ended = True
        if self.ended or not len(tokens):
            return []
        return [piece for piece in self.history.extend(tokens, keys, values) if piece.digest not in self._known]

    def crop(self, tokens: int, layers: Sequence[StoreLayer], number: int, length: int) -> bool:
        """Go back to so many tokens; False where a window no longer has the KV of the block that they end in.

        `number` is the row's in `layers`, whose `length` columns are what is left.
        """
        if tokens >= len(self.history):
            return True
        self.ended = False
        behind = tokens % self._layout.block_tokens
        partial = None
        if behind and tokens // self._layout.block_tokens == len(self.history.chain.digests):
            piece = self.history.partial()
            partial = None if piece is None else piece.data
        elif behind:
            partial = self._from_layers(layers, number, behind)
            if partial is None:
                return False
        self.history.begin(self.history.tokens[:tokens], partial)
        return True

    def _from_layers(self, layers: Sequence[StoreLayer], number: int, behind: int) -> Bytes | None:
        """The last `behind` tokens of the layers as a block of all columns; None where one no longer has them."""
        layout = self._layout
        shape = (layout.layers, layout.head_groups, 2, layout.heads, layout.block_tokens, -1)
        block = np.zeros((*shape[:-1], layout.head_dim * layout.item_bytes), np.uint8)
        for at, layer in enumerate(layers):
            last = layer.last(number, behind)
            if last is None:
                return None
            for side, states in enumerate(last):
                raw = states.detach().cpu().contiguous().view(torch.uint8).numpy()
                block[at, :, side, :, :behind] = raw.reshape(layout.head_groups, layout.heads, behind, -1)
        return block.reshape(len(layers) * layout.head_groups, -1)
