"""A stack of transformer layers as decoding sees them: a token of each sequence in, KV in a pool, random weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from gpu.scenes import Draw
from kvstore.device import DevicePool
from kvstore.kernels.decode import paged_decode


@dataclass(frozen=True, slots=True)
class Shape:
    """As Llama's: RMS norm, grouped-query attention, a gated MLP. No positions: they change no cost here."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights `[out, in]`."""

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor


class Model:
    """Weights are scaled so that states keep their size."""

    def __init__(self, shape: Shape, draw: Draw) -> None:
        self.shape = shape
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim

        def weight(rows: int, columns: int) -> Tensor:
            return draw.normal(rows, columns, dtype=shape.dtype) * columns**-0.5

        self._layers = [
            Layer(
                weight(width, shape.hidden), weight(shape.hidden, shape.heads * shape.head_dim),
                weight(2 * shape.inner, shape.hidden), weight(shape.hidden, shape.inner),
            )
            for _ in range(shape.layers)
        ]  # fmt: skip

    def forward(self, hidden: Tensor, pool: DevicePool, slots: Tensor) -> Tensor:
        """`[batch, hidden]` → the same; K and V of a token go to `slots` of every layer, then attention reads them."""
        for number, layer in enumerate(self._layers):
            hidden = hidden + self._attend(number, layer, self._norm(hidden), pool, slots)
            gate, up = F.linear(self._norm(hidden), layer.gate_up).chunk(2, -1)
            hidden = hidden + F.linear(F.silu(gate) * up, layer.down)
        return self._norm(hidden)

    def _attend(self, number: int, layer: Layer, hidden: Tensor, pool: DevicePool, slots: Tensor) -> Tensor:
        shape = self.shape
        projected = F.linear(hidden, layer.qkv).unflatten(1, (-1, shape.head_dim))
        query, key, value = projected.split((shape.heads, shape.kv_heads, shape.kv_heads), 1)
        cache = pool.cache(number)
        torch.ops.kvscope.append(key, value, cache, slots, None, None)
        keys, values = cache[:, 0].transpose(1, 2), cache[:, 1].transpose(1, 2)
        seen = paged_decode(query[:, None], keys, values, pool.table, pool.lengths, shape.head_dim**-0.5)
        return F.linear(seen.flatten(1), layer.out)

    @staticmethod
    def _norm(hidden: Tensor) -> Tensor:
        return F.rms_norm(hidden, hidden.shape[-1:])
