"""What was here and is gone: a bounded memory of removed keys, so that a miss can say why.

A direct-mapped table: one word a cell, the upper 56 bits of a hash of the key as its fingerprint, the reason in the
low 8. A newer removal takes an older one's cell. So a memory of `cells` cells errs in two ways, both only about *why*:

- a key that was never here looks like one that was with probability load · 2⁻⁵⁶ (< 2 · 10⁻¹⁷) a question;
- after m further removals a reason is forgotten (and the miss is `ABSENT`) with probability 1 − exp(−m / cells):
  12 % after as many removals as the pool has blocks, with the default of eight cells a block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvstore.keys import Keys, mix
from kvstore.messages import Miss

CELLS_PER_BLOCK = 8
_PLACE_SEED = 0x6768
_TAG_SEED = 0x6F73
_REASON = np.uint64(0xFF)

Reasons = npt.NDArray[np.int64]
"""`[n]` of `Miss`."""


class Ghosts:
    """Removed keys by reason. `cells` is rounded up to a power of two; 8 bytes a cell."""

    def __init__(self, cells: int) -> None:
        self.cells = 1 << max(4, (max(1, cells) - 1).bit_length())
        self._table = np.zeros(self.cells, np.uint64)
        self._mask = np.uint64(self.cells - 1)

    @classmethod
    def for_pool(cls, blocks: int) -> Ghosts:
        """The default size for a pool of `blocks`."""
        return cls(CELLS_PER_BLOCK * blocks)

    def add(self, keys: Keys, reason: Miss) -> None:
        """Remember that `keys` `[n, 4]` went for `reason`."""
        if len(keys):
            self._table[self._places(keys)] = self._tags(keys) | np.uint64(reason)

    def why(self, keys: Keys) -> Reasons:
        """Why each of `keys` (known to be absent) is not here: `[n]` of `Miss`, `ABSENT` when nothing is known."""
        words = self._table[self._places(keys)]
        known = (words & ~_REASON) == self._tags(keys)
        known &= words != 0
        return np.where(known, words & _REASON, np.uint64(Miss.ABSENT)).astype(np.int64)

    def _places(self, keys: Keys) -> npt.NDArray[np.int64]:
        return (mix(keys, _PLACE_SEED) & self._mask).astype(np.int64)

    @staticmethod
    def _tags(keys: Keys) -> npt.NDArray[np.uint64]:
        return mix(keys, _TAG_SEED) & ~_REASON
