"""Sequences in the blocks of a pool, in no order, and NaN wherever nobody may look: what paged decode is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu.scenes import FP8, Draw


@dataclass(frozen=True, slots=True)
class Heads:
    """Of a layer: query heads, KV heads, numbers a head."""

    query: int = 32
    kv: int = 8
    dim: int = 128


@dataclass(slots=True)
class Scene:
    """`query` `[batch, q_len, heads, dim]`; `pool` `[blocks, 2, kv heads, block_tokens, dim]`; `tables` int32
    `[batch, columns]`, `lengths` int32 `[batch]`. `used` `[batch]` are the lengths on the host."""

    query: Tensor
    pool: Tensor
    tables: Tensor
    lengths: Tensor
    used: list[int]
    key_scale: Tensor | None = None
    value_scale: Tensor | None = None

    @property
    def keys(self) -> Tensor:
        """`[blocks, block_tokens, kv heads, dim]`, a view of the pool."""
        return self.pool[:, 0].transpose(1, 2)

    @property
    def values(self) -> Tensor:
        return self.pool[:, 1].transpose(1, 2)

    @property
    def block_tokens(self) -> int:
        return int(self.pool.shape[3])

    @property
    def scale(self) -> float:
        return float(self.query.shape[-1] ** -0.5)

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V that attention over all sequences cannot avoid to read."""
        return sum(self.used) * self.pool.shape[2] * self.pool.shape[4] * 2 * self.pool.element_size()

    def csr(self) -> tuple[Tensor, Tensor, Tensor]:
        """FlashInfer's `indptr`, `indices`, `last_page_len`, int32."""
        size = self.block_tokens
        pages = [-(-length // size) for length in self.used]
        indices = torch.cat([row[:count] for row, count in zip(self.tables, pages, strict=True)])
        last = [length - max(0, count - 1) * size for length, count in zip(self.used, pages, strict=True)]
        indptr = torch.tensor([0, *pages]).cumsum(0).int().to(indices.device)
        return indptr, indices.int(), torch.tensor(last, dtype=torch.int32, device=indices.device)

    def contiguous(self) -> Tensor:
        """`[2, batch, kv heads, length, dim]` of sequences of one length: what attention without pages reads."""
        length = self.used[0]
        assert set(self.used) == {length}, "sequences of several lengths"
        columns = -(-length // self.block_tokens)
        blocks = self.tables[:, :columns].long()
        taken = self.pool.view(torch.uint8)[blocks] if self.pool.dtype in FP8 else self.pool[blocks]
        whole = taken.permute(2, 0, 3, 1, 4, 5).flatten(3, 4)[:, :, :, :length].contiguous()
        return whole.view(self.pool.dtype)


def scene(
    draw: Draw,
    lengths: Sequence[int],
    heads: Heads,
    *,
    block_tokens: int = 16,
    q_len: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    kv_dtype: torch.dtype | None = None,
    peaked: float = 1.0,
    spare: int = 3,
    one_scale: bool = False,
) -> Scene:
    """Sequences of these lengths. `peaked` widens the scores, so that few tokens weigh and a wrong one is seen.

    Blocks that nobody holds, and what lies behind a sequence's last token, are NaN; table entries behind it are no
    blocks at all. 8-bit KV gets a scale a head, or one for all.
    """
    kept = kv_dtype or dtype
    columns = max(1, -(-max(lengths) // block_tokens))
    held = [-(-length // block_tokens) for length in lengths]
    blocks = sum(held) + spare
    pool = _pool(draw, blocks, heads, block_tokens, kept)
    order = draw.some(blocks, blocks).int()
    raw = pool.view(torch.uint8) if kept in FP8 else pool
    nan = 0x7F if kept in FP8 else float("nan")
    raw[order[sum(held) :].long()] = nan
    tables = torch.full((len(lengths), columns), -1, dtype=torch.int32, device=draw.device)
    tables[1::2] = 1 << 30
    first = 0
    for row, (count, length) in enumerate(zip(held, lengths, strict=True)):
        tables[row, :count] = order[first : first + count]
        first += count
        if length % block_tokens:
            raw[int(order[first - 1]), :, :, length % block_tokens :] = nan
    query = draw.normal(len(lengths), q_len, heads.query, heads.dim, dtype=dtype) * peaked
    scales = [draw.normal(1 if one_scale else heads.kv).abs() + 0.25 for _ in range(2)] if kept in FP8 else [None, None]
    used = list(lengths)
    return Scene(query, pool, tables, torch.tensor(used, dtype=torch.int32, device=draw.device), used, *scales)


def _pool(draw: Draw, blocks: int, heads: Heads, block_tokens: int, dtype: torch.dtype) -> Tensor:
    """Drawn in pieces where float32 on the way to eight bits would take four times the memory."""
    shape = (2, heads.kv, block_tokens, heads.dim)
    if dtype not in FP8:
        return draw.normal(blocks, *shape, dtype=dtype)
    pool = torch.empty(blocks, *shape, dtype=dtype, device=draw.device)
    for first in range(0, blocks, 4096):
        last = min(blocks, first + 4096)
        pool.view(torch.uint8)[first:last] = draw.normal(last - first, *shape).to(dtype).view(torch.uint8)
    return pool
