"""What a step changes, worked out on the host from lengths alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvstore.device.crossing import Ints
from kvstore.errors import BadRequest, PoolExhausted


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

    Raises `BadRequest` for a negative number, `PoolExhausted` where a row has no columns left.
    """
    which, more = np.asarray(rows, np.int64).reshape(-1), np.asarray(tokens, np.int64).reshape(-1)
    if len(which) != len(more):
        raise BadRequest(f"{len(more)} numbers of tokens for {len(which)} rows")
    if more.min(initial=0) < 0:
        raise BadRequest(f"a row cannot get {int(more.min())} tokens")
    firsts = had[which]
    lengths = firsts + more
    before, after = -(-firsts // block_tokens), -(-lengths // block_tokens)
    if after.max(initial=0) > columns:
        raise PoolExhausted(f"{int(after.max())} blocks asked, a row of the block table has {columns}")
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
