"""A model's columns in the store: a key a (layer, head group) for every block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvstore.keys import Keys, block_keys, tail_digest
from kvstore.layout import Layout


class Columns:
    """Keys of whole blocks, all columns of them; column `layer * head_groups + group`."""

    def __init__(self, layout: Layout) -> None:
        self._pairs = [(layer, group) for layer in range(layout.layers) for group in range(layout.head_groups)]

    def __len__(self) -> int:
        return len(self._pairs)

    def of(self, digests: Sequence[bytes], first_index: int = 0) -> Keys:
        """Keys of consecutive blocks: `[columns, blocks, 4]`."""
        keys = np.empty((len(self._pairs), len(digests), 4), np.uint64)
        keys[:] = block_keys(digests, 0, 0, first_index=first_index)
        place = np.array([layer | group << 16 for layer, group in self._pairs], np.uint64)
        keys[:, :, 3] |= place[:, None]
        return keys

    def block(self, digest: bytes, index: int) -> Keys:
        """Keys of one block: `[columns, 4]`."""
        return self.of([digest], index)[:, 0]

    def tail(self, parent: bytes, session: int, index: int) -> Keys:
        """Keys of a session's partial block `index` after `parent`: `[columns, 4]`."""
        return self.block(tail_digest(parent, session), index)
