"""`kvscope_paged`: an attention implementation of transformers' registry that decodes straight from a pool's pages.

A forward pass of a `PagedCache` with few tokens is computed by `kvscope::paged_decode`; every other one (a prompt, and
whatever another cache or none at all is used for) is transformers' own `sdpa`.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from kvstore.errors import BadRequest
from kvstore.integrations.transformers.paged_batch import PagedBatch

NAME = "kvscope_paged"
"""What `attn_implementation=` and `model.set_attn_implementation` take."""

_KNOWN = ("position_ids", "cache_position")
"""Tensors that models hand on to their attention and that say nothing of how it is computed."""


class _Current(threading.local):
    """The batch whose forward pass this thread is in."""

    batch: PagedBatch | None = None


_current = _Current()


def enter(batch: PagedBatch) -> None:
    """This thread computes a forward pass of `batch`."""
    _current.batch = batch


def leave(batch: PagedBatch) -> None:
    """It no longer does, however the pass ended."""
    if _current.batch is batch:
        _current.batch = None


def _decoding() -> PagedBatch | None:
    batch = _current.batch
    return batch if batch is not None and batch.decoding else None


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers calls it: `query` `[batch, heads, new, head_dim]`; `[batch, new, heads, head_dim]` comes back.

    Raises `BadRequest` for a kind of attention that the kernel has not.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    batch = _decoding()
    if batch is not None:
        _require_plain(kwargs)
        layer = int(module.layer_idx)
        return batch.attend(layer, query.transpose(1, 2), scale, softcap or 0.0), None
    if softcap:
        return _capped(query, key, value, attention_mask, scale, softcap), None
    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
    out, _ = plain(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    return out, None


def mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
    """As transformers' own for `sdpa`; none for a decode step: what it would hide is not in the pages, and looking
    whether there is padding would read the device."""
    if _decoding() is not None:
        return None
    made: torch.Tensor | None = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"](*args, **kwargs)
    return made


def _require_plain(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and name not in _KNOWN:
            raise BadRequest(f"attention with {name!r} is not what {NAME} computes: use sdpa with a StoreCache")


def _capped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scale: float,
    softcap: float,
) -> torch.Tensor:
    """A prompt's attention with capped scores, which torch's SDPA does not have. Without a mask it is causal."""
    batch, heads, new, head_dim = query.shape
    grouped = query.reshape(batch, key.shape[1], -1, new, head_dim)
    scores = torch.einsum("bkgqd,bknd->bkgqn", grouped, key).float() * scale
    scores = softcap * torch.tanh(scores / softcap)
    if attention_mask is None:
        seen = key.shape[-2]
        hidden = torch.ones(new, seen, dtype=torch.bool, device=query.device).triu(seen - new + 1)
    else:
        hidden = ~attention_mask[:, :, None]
    # As transformers' eager attention: a row that sees nothing (padding) gets a mean, not NaN.
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, -1).to(query.dtype)
    out = torch.einsum("bkgqn,bknd->bkgqd", weights, value)
    return out.reshape(batch, heads, new, head_dim).transpose(1, 2).contiguous()


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)
