"""The ways to have the KV of the tokens before: each an attention that counts the bytes it copies to get at them.

Copied bytes are KV of *earlier* tokens that a step writes somewhere else; the new token's own KV, which every cache
must write once, is not among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from kvstore.bitmap import Bitmap
from kvstore.table import BlockTable

States = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values `[batch, kv_heads, tokens, head_dim]` of each layer."""


class Cache(Protocol):
    """One way. `rewind` makes it hold the first `tokens` of its states (not timed); then a step is one forward pass
    with the cache as its attention."""

    copied: int

    def rewind(self, tokens: int) -> None: ...

    def __call__(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor: ...


class Recompute:
    """No cache: causal attention over what the pass itself computes; `states` keeps it where asked."""

    def __init__(self, *, keep: bool = False) -> None:
        self.copied = 0
        self.states: States = []
        self._keep = keep

    def rewind(self, tokens: int) -> None:
        self.states.clear()

    def __call__(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        if self._keep:
            self.states.append((keys, values))
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)


class Concatenating:
    """All keys in one tensor that grows by `torch.cat`: every step copies all of it."""

    def __init__(self, states: States) -> None:
        self.copied = 0
        self._states = states
        self._now: States = []

    def rewind(self, tokens: int) -> None:
        self._now = [(keys[:, :, :tokens], values[:, :, :tokens]) for keys, values in self._states]

    def __call__(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        before = self._now[layer]
        after = (torch.cat([before[0], keys], -2), torch.cat([before[1], values], -2))
        self.copied += before[0].nbytes + before[1].nbytes
        self._now[layer] = after
        return F.scaled_dot_product_attention(queries, *after, enable_gqa=True)


class Dynamic:
    """transformers' own cache, which concatenates, too. What it copies is seen from where its result lies."""

    def __init__(self, states: States) -> None:
        from transformers import DynamicCache

        self.copied = 0
        self._states = states
        self._make = DynamicCache
        self._cache: Any = None

    def rewind(self, tokens: int) -> None:
        self._cache = self._make()
        for layer, (keys, values) in enumerate(self._states):
            self._cache.update(keys[:, :, :tokens], values[:, :, :tokens], layer)

    def __call__(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        held = self._cache.layers[layer]
        before = [(states.data_ptr(), states.nbytes) for states in (held.keys, held.values)]
        after = self._cache.update(keys, values, layer)
        for (address, size), states in zip(before, after, strict=True):
            self.copied += size if states.data_ptr() != address else 0
        return F.scaled_dot_product_attention(queries, *after, enable_gqa=True)


@dataclass(frozen=True, slots=True)
class Paged:
    """A pool of KV in blocks `[layers, blocks, 2, kv_heads, block_tokens, head_dim]`, and the blocks of each sequence
    `[batch, columns]` (the store's layout of a device pool, `kvstore.kernels`; one head group)."""

    pool: torch.Tensor
    tables: torch.Tensor

    @property
    def block_tokens(self) -> int:
        return int(self.pool.shape[-2])

    def slots(self, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Blocks `[batch, count]` and places in them `[count]` of positions `first`, … of every sequence."""
        at = torch.arange(first, first + count, device=self.tables.device)
        return self.tables[:, at // self.block_tokens].long(), at % self.block_tokens

    def write(
        self, layer: int, slots: tuple[torch.Tensor, torch.Tensor], keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Put `[batch, kv_heads, count, head_dim]` into `slots`."""
        blocks, places = slots
        self.pool[layer, blocks, 0, :, places] = keys.transpose(1, 2)
        self.pool[layer, blocks, 1, :, places] = values.transpose(1, 2)


def paged(states: States, tokens: int, block_tokens: int, seed: int = 0) -> Paged:
    """A pool with the first `tokens` of `states` in it and room for one more, its blocks scattered.

    The bitmap hands out runs; a pool in use has none left, so that the blocks are dealt out in random order. Blocks
    that nobody holds contain NaN: whoever looks at one is found out.
    """
    keys = states[0][0]
    batch, kv_heads, _, head_dim = keys.shape
    columns = -(-(tokens + 1) // block_tokens)
    count = 2 * batch * columns
    bitmap, table = Bitmap(count), BlockTable(batch, columns, block_tokens)
    slots = bitmap.allocate(count)
    assert slots is not None
    np.random.default_rng(seed).shuffle(slots)
    for row in range(batch):
        held = slots[row * columns : (row + 1) * columns]
        table.append(table.open(), held, columns * block_tokens)
    table.commit()
    pool = keys.new_full((len(states), count, 2, kv_heads, block_tokens, head_dim), float("nan"))
    found = Paged(pool, torch.from_numpy(np.array(table.device_table)).to(keys.device))
    slots_of_all = found.slots(0, tokens)
    for layer, (old_keys, old_values) in enumerate(states):
        found.write(layer, slots_of_all, old_keys[:, :, :tokens], old_values[:, :, :tokens])
    return found


class Gathered:
    """Blocks gathered into contiguous tensors, then attention as ever: every step copies all of it."""

    def __init__(self, kv: Paged) -> None:
        self.copied = 0
        self._kv = kv
        self._tokens = 0
        self._slots = kv.slots(0, 1)

    def rewind(self, tokens: int) -> None:
        self._tokens = tokens

    def __call__(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        if layer == 0:
            self._slots = self._kv.slots(self._tokens, 1)
        self._kv.write(layer, self._slots, keys, values)
        length = self._tokens + 1
        before = self._gather(layer, length)
        return F.scaled_dot_product_attention(queries, before[0], before[1], enable_gqa=True)

    def _gather(self, layer: int, length: int) -> torch.Tensor:
        """`[2, batch, kv_heads, length, head_dim]` in one copy of whole blocks, cut to the length without another."""
        size = self._kv.block_tokens
        blocks = self._kv.tables[:, : -(-length // size)]
        by_head = self._kv.pool[layer].permute(1, 2, 0, 3, 4)
        taken = torch.index_select(by_head, 2, blocks.reshape(-1))
        self.copied += taken.nbytes
        batch, columns = blocks.shape
        whole = taken.unflatten(2, (batch, columns)).transpose(1, 2)
        return whole.flatten(3, 4)[:, :, :, :length]


class ByKernel:
    """Attention straight from the blocks (`kvscope::paged_decode`): a step copies nothing."""

    def __init__(self, kv: Paged) -> None:
        from kvstore.kernels.decode import paged_decode

        self.copied = 0
        self._kv = kv
        self._decode = paged_decode
        self._tokens = 0
        self._slots = kv.slots(0, 1)
        self._lengths = torch.zeros(len(kv.tables), dtype=torch.int32, device=kv.tables.device)

    def rewind(self, tokens: int) -> None:
        self._tokens = tokens
        self._lengths.fill_(tokens + 1)

    def __call__(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        if layer == 0:
            self._slots = self._kv.slots(self._tokens, 1)
        self._kv.write(layer, self._slots, keys, values)
        pool = self._kv.pool[layer].transpose(2, 3)
        scale = queries.shape[-1] ** -0.5
        seen = self._decode(queries.transpose(1, 2), pool[:, 0], pool[:, 1], self._kv.tables, self._lengths, scale)
        return seen.transpose(1, 2)
