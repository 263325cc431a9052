"""`kvscope::paged_decode` and `kvscope::paged_decode_csr`: paged decode attention as PyTorch operators."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from kvstore.errors import BadRequest
from kvstore.kernels.decode.launch import launch
from kvstore.kernels.decode.pages import Call, Pages
from kvstore.kernels.decode.reference import paged_decode_reference
from kvstore.kernels.decode.splits import MOST_SPLITS
from kvstore.kernels.language import launches

log = logging.getLogger(__name__)

_REST = (
    "float scale, int window=0, float softcap=0.0, Tensor? key_scale=None, Tensor? value_scale=None, "
    "str format='', int splits=0) -> Tensor"
)


@dataclass(slots=True)
class Calls:
    """Decode attention of this process: what the kernel computed, and what its reference did. A replayed CUDA graph
    counts once, when it was captured."""

    kernel: int = 0
    reference: int = 0


calls = Calls()


@torch.library.custom_op(
    "kvscope::paged_decode",
    mutates_args=(),
    schema=f"(Tensor query, Tensor keys, Tensor values, Tensor tables, Tensor lengths, {_REST}",
)
def paged_decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
    format: str = "",
    splits: int = 0,
) -> torch.Tensor:
    """Attention of the last `q_len` tokens of each sequence over its pages: `[batch, q_len, heads, head_dim]`.

    `tables` int32 `[batch, max_blocks]`, `lengths` int32 `[batch]` (0: the row is 0); the rest as in `Call`.
    `splits` of each sequence, 0 to choose. Raises `BadRequest`. Never reads the device where the kernel runs.
    """
    pages = Pages(tables, lengths)
    return _run(
        Call(query, keys, values, pages, scale, window, softcap, key_scale, value_scale, format).require(), splits
    )


@torch.library.custom_op(
    "kvscope::paged_decode_csr",
    mutates_args=(),
    schema=f"(Tensor query, Tensor keys, Tensor values, Tensor indptr, Tensor indices, Tensor last_page_len, {_REST}",
)
def paged_decode_csr(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_len: torch.Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
    format: str = "",
    splits: int = 0,
) -> torch.Tensor:
    """The same over FlashInfer's page table (`kvstore.table.Csr`): int32 `indptr` `[batch + 1]`, `indices`,
    `last_page_len` `[batch]`."""
    pages = Pages(indices, last_page_len, indptr)
    return _run(
        Call(query, keys, values, pages, scale, window, softcap, key_scale, value_scale, format).require(), splits
    )


@paged_decode.register_fake
def _fake(query: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    return query.new_empty(query.shape)


paged_decode_csr.register_fake(_fake)


def _run(call: Call, splits: int) -> torch.Tensor:
    if not 0 <= splits <= MOST_SPLITS:
        raise BadRequest(f"{splits} splits: 1 to {MOST_SPLITS} are possible, 0 chooses")
    out = torch.empty(call.query.shape, dtype=call.query.dtype, device=call.query.device)
    if launches(call.query):
        launch(call, out, splits)
        calls.kernel += 1
        return out
    if not calls.reference:
        log.warning("paged decode attention runs its reference in PyTorch: the kernel needs triton and a GPU")
    calls.reference += 1
    return out.copy_(paged_decode_reference(call))
