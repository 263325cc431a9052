"""A few layers of a decoder with random weights: enough to keep a device busy between two changes of its tables."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from kvstore.device import DevicePool
from kvstore.device.pool import torch_dtype
from kvstore.kernels.decode import paged_decode
from playbooks.lab.live.decode.device import Size


class _Weights(NamedTuple):
    """`[out, in]` each."""

    qkv: Tensor
    out: Tensor
    up: Tensor
    down: Tensor


class Batch(NamedTuple):
    """A step as the device sees it: the `slots` of its tokens, and `table` and `lengths` as they are in that step."""

    slots: Tensor
    table: Tensor
    lengths: Tensor


class Model:
    """RMS norms, grouped-query attention over the pool's pages, gated MLPs; no positions, which change no cost."""

    def __init__(self, size: Size, pool: DevicePool, seed: int) -> None:
        self._size, self._pool = size, pool
        where, dtype = pool.kv.device, torch_dtype(pool.layout)
        generator = torch.Generator(where).manual_seed(seed)

        def weights(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=generator, device=where).mul_(columns**-0.5).to(dtype)

        wide = (size.heads + 2 * size.kv_heads) * size.head_dim
        self._layers = [
            _Weights(
                weights(wide, size.hidden), weights(size.hidden, size.heads * size.head_dim),
                weights(2 * size.inner, size.hidden), weights(size.hidden, size.inner),
            )
            for _ in range(size.layers)
        ]  # fmt: skip

    def fill(self, tokens: int, slots: Tensor) -> None:
        """KV of `tokens` prompt tokens, as a prefill elsewhere would have sent it, goes into every layer."""
        size, kv = self._size, self._pool.kv
        for layer in range(size.layers):
            key, value = torch.randn(2, tokens, size.kv_heads, size.head_dim, device=kv.device, dtype=kv.dtype)
            torch.ops.kvscope.append(key, value, self._pool.cache(layer), slots, None, None)

    def forward(self, hidden: Tensor, batch: Batch) -> Tensor:
        """`[rows, hidden]` → the same, one token of each sequence."""
        for number, layer in enumerate(self._layers):
            hidden = hidden + self._attend(number, layer, _norm(hidden), batch)
            gate, up = F.linear(_norm(hidden), layer.up).chunk(2, -1)
            hidden = hidden + F.linear(F.silu(gate) * up, layer.down)
        return _norm(hidden)

    def _attend(self, number: int, layer: _Weights, hidden: Tensor, batch: Batch) -> Tensor:
        size, cache = self._size, self._pool.cache(number)
        heads = F.linear(hidden, layer.qkv).unflatten(1, (-1, size.head_dim))
        query, key, value = heads.split((size.heads, size.kv_heads, size.kv_heads), 1)
        torch.ops.kvscope.append(key, value, cache, batch.slots, None, None)
        keys, values = cache[:, 0].transpose(1, 2), cache[:, 1].transpose(1, 2)
        seen = paged_decode(query[:, None], keys, values, batch.table, batch.lengths, size.head_dim**-0.5)
        return F.linear(seen.flatten(1), layer.out)


def _norm(hidden: Tensor) -> Tensor:
    return F.rms_norm(hidden, hidden.shape[-1:])
