"""Attention in float64, straight from its definition: what every kernel's numbers are held against."""

from __future__ import annotations

import torch
from torch import Tensor

from gpu.paged import Scene
from gpu.scenes import FP8


def attention(scene: Scene, row: int, *, window: int = 0, softcap: float = 0.0) -> Tensor:
    """`[q_len, heads, dim]` float64 of sequence `row`; the query's tokens are its last. 0 where nothing is seen."""
    query, length = scene.query[row].double(), scene.used[row]
    q_len, heads, dim = query.shape
    if not length:
        return torch.zeros_like(query)
    group = heads // scene.pool.shape[2]
    keys, values = states(scene, row)
    asked = query.reshape(q_len, -1, group, dim)
    scores = torch.einsum("qkgd,knd->kgqn", asked, keys) * scene.scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(length, device=query.device)
    position = torch.arange(length - q_len, length, device=query.device)[:, None]
    seen = at <= position
    if window:
        seen &= at > position - window
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    weights = torch.where(seen.any(-1)[:, None], weights, 0.0)
    return torch.einsum("kgqn,knd->qkgd", weights, values).reshape(q_len, heads, dim)


def states(scene: Scene, row: int) -> tuple[Tensor, Tensor]:
    """Keys and values `[kv heads, length, dim]` of a sequence in float64, scales applied."""
    length = scene.used[row]
    blocks = scene.tables[row, : -(-length // scene.block_tokens)].long()
    taken = scene.pool.view(torch.uint8)[blocks] if scene.pool.dtype in FP8 else scene.pool[blocks]
    taken = taken.view(scene.pool.dtype).double().permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length]
    keys, values = taken[0], taken[1]
    if scene.key_scale is not None and scene.value_scale is not None:
        keys = keys * scene.key_scale.double()[:, None, None]
        values = values * scene.value_scale.double()[:, None, None]
    return keys, values
