"""A Llama with random weights in plain torch, whose attention is left to whoever keeps the KV."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

Attention = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""`(layer, queries [batch, heads, new, head_dim], keys, values [batch, kv_heads, new, head_dim])` → what the queries
see, like the queries. Keys are rotated already."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model; `hidden = heads * head_dim`."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int = 4096
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-6

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def token_bytes(self, item_bytes: int) -> int:
        """KV of one token, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * item_bytes


SHAPES: Mapping[str, Shape] = {
    "tiny": Shape(hidden=128, intermediate=256, layers=4, heads=4, kv_heads=2),
    "small": Shape(hidden=512, intermediate=1536, layers=8, heads=8, kv_heads=4),
}
"""The models of `kvstore bench sessions`."""


class Llama:
    """Weights by the names that `transformers.LlamaForCausalLM` has for them; nothing is trained, nothing learnt."""

    def __init__(self, shape: Shape, *, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
        self.shape = shape
        self.device = device
        self.dtype = dtype
        draw = torch.Generator().manual_seed(seed)
        self.weights = {
            name: (torch.ones(size) if len(size) == 1 else torch.randn(size, generator=draw) * 0.02).to(device, dtype)
            for name, size in _sizes(shape).items()
        }

    @property
    def parameters(self) -> int:
        return sum(weight.numel() for weight in self.weights.values())

    def forward(self, tokens: torch.Tensor, past: int, attention: Attention) -> torch.Tensor:
        """Logits `[batch, vocabulary]` of the last of `tokens` `[batch, new]`, which follow `past` others."""
        shape, weights = self.shape, self.weights
        states = F.embedding(tokens, weights["model.embed_tokens.weight"])
        rotation = self._rotation(past, tokens.shape[1])
        for layer in range(shape.layers):
            own = f"model.layers.{layer}."
            inner = self._norm(states, own + "input_layernorm.weight")
            seen = attention(
                layer,
                _rotate(self._heads(inner, own + "self_attn.q_proj.weight", shape.heads), rotation),
                _rotate(self._heads(inner, own + "self_attn.k_proj.weight", shape.kv_heads), rotation),
                self._heads(inner, own + "self_attn.v_proj.weight", shape.kv_heads),
            )
            states = states + F.linear(seen.transpose(1, 2).flatten(2), weights[own + "self_attn.o_proj.weight"])
            inner = self._norm(states, own + "post_attention_layernorm.weight")
            gate = F.silu(F.linear(inner, weights[own + "mlp.gate_proj.weight"]))
            up = F.linear(inner, weights[own + "mlp.up_proj.weight"])
            states = states + F.linear(gate * up, weights[own + "mlp.down_proj.weight"])
        return F.linear(self._norm(states[:, -1], "model.norm.weight"), weights["lm_head.weight"])

    def _heads(self, states: torch.Tensor, name: str, heads: int) -> torch.Tensor:
        return F.linear(states, self.weights[name]).unflatten(-1, (heads, -1)).transpose(1, 2)

    def _norm(self, states: torch.Tensor, name: str) -> torch.Tensor:
        wide = states.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.shape.norm_epsilon)
        return (wide * scale).to(states.dtype) * self.weights[name]

    def _rotation(self, past: int, new: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine `[new, head_dim]` of each position and frequency (Su et al., RoFormer, 2021)."""
        half = torch.arange(0, self.shape.head_dim, 2, device=self.device, dtype=torch.float32)
        frequencies = self.shape.rope_theta ** (-half / self.shape.head_dim)
        positions = torch.arange(past, past + new, device=self.device, dtype=torch.float32)
        angles = torch.outer(positions, frequencies).repeat(1, 2)
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def _rotate(states: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    first, second = states.chunk(2, -1)
    cosine, sine = rotation
    return states * cosine + torch.cat((-second, first), -1) * sine


def _sizes(shape: Shape) -> dict[str, tuple[int, ...]]:
    kv = shape.kv_heads * shape.head_dim
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocabulary, shape.hidden),
        "model.norm.weight": (shape.hidden,),
        "lm_head.weight": (shape.vocabulary, shape.hidden),
    }
    for layer in range(shape.layers):
        own = f"model.layers.{layer}."
        sizes |= {
            own + "input_layernorm.weight": (shape.hidden,),
            own + "post_attention_layernorm.weight": (shape.hidden,),
            own + "self_attn.q_proj.weight": (shape.hidden, shape.hidden),
            own + "self_attn.k_proj.weight": (kv, shape.hidden),
            own + "self_attn.v_proj.weight": (kv, shape.hidden),
            own + "self_attn.o_proj.weight": (shape.hidden, shape.hidden),
            own + "mlp.gate_proj.weight": (shape.intermediate, shape.hidden),
            own + "mlp.up_proj.weight": (shape.intermediate, shape.hidden),
            own + "mlp.down_proj.weight": (shape.hidden, shape.intermediate),
        }
    return sizes
