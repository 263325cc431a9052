"""Paged decode attention: the last tokens of each sequence over the pages that its block table names.

`paged_decode` (block tables) and `paged_decode_csr` (FlashInfer's page tables) are the operators
`torch.ops.kvscope.paged_decode…`; `paged_decode_reference` is what they mean, in plain PyTorch; `calls` counts which of
the two ran.
Keys and values of one layer are views `[blocks, block_tokens, kv_heads, head_dim]` of the pool, with any strides:
`pool[plane][:, 0].transpose(1, 2)` and `pool[plane][:, 1].transpose(1, 2)`.
"""

from __future__ import annotations

from kvstore.kernels.decode.op import Calls, calls, paged_decode, paged_decode_csr
from kvstore.kernels.decode.pages import Call, Pages
from kvstore.kernels.decode.reference import paged_decode_reference
from kvstore.kernels.decode.variants import variants

__all__ = [
    "Call",
    "Calls",
    "Pages",
    "calls",
    "paged_decode",
    "paged_decode_csr",
    "paged_decode_reference",
    "variants",
]
