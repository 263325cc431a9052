"""What a step changes, worked out on the host from lengths alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvstore.arguments import counts
from kvstore.device.crossing import Ints
from kvstore.errors import PoolExhausted


@dataclass(frozen=True)
class Plan:
    """`rows` get the tokens `firsts[i]` … `lengths[i] - 1`, which are `offsets[i]` … of the step's; those that need
    blocks for them (`growing`, places in `rows`) get `counts` new ones from column `columns` on."""

    rows: Ints
    firsts: Ints
    lengths: Ints
    offsets: Ints
    growing: npt.NDArray[np.int64]
    columns: Ints
    counts: Ints

    @property
    def tokens(self) -> int:
        return int(self.offsets[-1])

    @property
    def most(self) -> int:
        """Tokens of the sequence that has most of them."""
        return int((self.lengths - self.firsts).max(initial=0))


def plan(
    rows: Sequence[int], tokens: Sequence[int], had: npt.NDArray[np.int64], *, columns: int, block_tokens: int
) -> Plan:
    """`tokens[i]` more for row `rows[i]`, given how many each row of the table `had`.

    Raises `BadRequest` for what is no whole number or is negative, `PoolExhausted` where a row has no columns left.
    """
    which, more = counts("rows", rows, len(rows)), counts("tokens", tokens, len(rows))
    firsts = had[which]
    over = more - (columns * block_tokens - firsts)  # not of the sum, which need not fit into 64 bits
    if over.max(initial=0) > 0:
        worst = int(over.argmax())
        asked = -(-(int(firsts[worst]) + int(more[worst])) // block_tokens)
        raise PoolExhausted(f"{asked} blocks asked, a row of the block table has {columns}")
    lengths = firsts + more
    before, after = -(-firsts // block_tokens), -(-lengths // block_tokens)
    growing = np.flatnonzero(after > before)
    offsets = np.concatenate([[0], np.cumsum(more)])
    return Plan(
        which.astype(np.int32),
        firsts.astype(np.int32),
        lengths.astype(np.int32),
        offsets.astype(np.int32),
        growing,
        before[growing].astype(np.int32),
        (after - before)[growing].astype(np.int32),
    )
