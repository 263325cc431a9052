"""Paged decode attention in plain PyTorch, sequence by sequence: what the kernel must agree with."""

from __future__ import annotations

import torch

from kvstore.kernels.decode.pages import FP8, Call


def paged_decode_reference(call: Call, *, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """`[batch, q_len, heads, head_dim]` of `dtype`, computed in it. Reads lengths and tables on the host.

    Only blocks and tokens within a sequence's length are looked at; a query that sees nothing is 0.
    """
    batch, q_len, heads, head_dim = call.query.shape
    out = torch.zeros((batch, q_len, heads, head_dim), dtype=dtype, device=call.query.device)
    for row, (blocks, length) in enumerate(sequences(call)):
        if length:
            keys = _states(call, call.keys, blocks, length, call.key_scale, dtype)
            values = _states(call, call.values, blocks, length, call.value_scale, dtype)
            out[row] = _attend(call, call.query[row].to(dtype), keys, values)
    return out


def sequences(call: Call) -> list[tuple[list[int], int]]:
    """Blocks and tokens of each sequence, read on the host."""
    size, pages = int(call.keys.shape[1]), call.pages
    lengths: list[int] = pages.lengths.tolist()
    if pages.indptr is None:
        return [(pages.tables[row, : -(-n // size)].tolist(), n) for row, n in enumerate(lengths)]
    ends: list[int] = pages.indptr.tolist()
    found = []
    for row, last in enumerate(lengths):
        blocks: list[int] = pages.tables[ends[row] : ends[row + 1]].tolist()
        found.append((blocks, (len(blocks) - 1) * size + last if blocks else 0))
    return found


def _states(
    call: Call, pool: torch.Tensor, blocks: list[int], length: int, scale: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """`[length, heads, head_dim]`: the sequence's states, once for every query head."""
    states = pool.view(torch.uint8)[blocks] if pool.dtype in FP8 else pool[blocks]
    states = states.flatten(0, 1)[:length]
    if call.kv_format:
        kinds = {name: kind for kind, name in FP8.items()}
        states = states.contiguous().view(kinds[call.kv_format])
    states = states.to(dtype)
    if scale is not None:
        states = states * scale.to(dtype).reshape(-1, 1)
    return states.repeat_interleave(call.group, 1)


def _attend(call: Call, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`query` `[q_len, heads, head_dim]`, the last tokens of `keys`, `values` `[length, heads, head_dim]`."""
    scores = torch.einsum("qhd,nhd->hqn", query, keys) * call.scale
    if call.softcap:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    length, q_len = len(keys), len(query)
    at = torch.arange(length, device=query.device)
    position = torch.arange(length - q_len, length, device=query.device)[:, None]
    seen = at <= position
    if call.window:
        seen &= at > position - call.window
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    weights = torch.where(seen.any(-1)[:, None], weights, 0.0)  # a softmax over nothing is NaN
    return torch.einsum("hqn,nhd->qhd", weights, values)
