"""What is tuned for: a card, a model's KV on one of its ranks, and the room that the weights leave."""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.errors import BadRequest
from kvstore.layout import Layout
from kvstore.replay.trace import WINDOW_TOKENS
from kvstore.tune.cards import Card
from kvstore.tune.models import Model

USED_SHARE = 0.9
"""Of the card's memory, weights and KV together (`gpu_memory_utilization` as vLLM's documentation has it); the rest is
for activations, graphs and the runtime."""

KV_LEAST_SHARE = 0.25
"""Of the used memory: with less of it for KV, the default takes more ranks (policy)."""

RANKS = (1, 2, 4, 8, 16)
WEIGHT_BYTES = 2.0
"""A parameter in bfloat16."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Sizes are of one rank: one card of the `ranks` that hold the model by tensor parallelism."""

    card: Card
    model: Model
    dtype: str
    ranks: int
    weight_bytes: float
    used_share: float = USED_SHARE

    @property
    def heads(self) -> int:
        """KV heads of a rank: dealt out, and repeated once there are more ranks than heads."""
        return max(1, self.model.kv_heads // self.ranks)

    @property
    def pool_bytes(self) -> float:
        """Room for KV on a rank: what is used of the memory, less the rank's weights."""
        return self.used_share * self.card.memory_bytes - self.weight_bytes / self.ranks

    @property
    def token_bytes(self) -> int:
        """KV of one token on a rank, all layers: 2 (K and V) · layers · heads · head_dim · bytes of an element."""
        return self.model.layers * self.layout(1).block_bytes

    def layout(self, block_tokens: int) -> Layout:
        """A rank's blocks: one head group of `heads` KV heads."""
        return Layout(
            self.model.name,
            layers=self.model.layers,
            heads=self.heads,
            head_dim=self.model.head_dim,
            block_tokens=block_tokens,
            window_tokens=WINDOW_TOKENS,
            dtype=self.dtype,
        )


def setting_of(
    card: Card,
    model: Model,
    *,
    dtype: str = "bfloat16",
    ranks: int | None = None,
    weight_bytes: float | None = None,
    used_share: float = USED_SHARE,
) -> Setting:
    """`ranks` None: the fewest of 1, 2, 4, … whose weights leave a quarter of the used memory to KV.

    Raises `BadRequest` when the heads cannot be dealt out or the weights leave no room.
    """
    weights = model.parameters * WEIGHT_BYTES if weight_bytes is None else weight_bytes
    used = used_share * card.memory_bytes
    if ranks is None:
        enough = (count for count in RANKS if weights / count <= (1 - KV_LEAST_SHARE) * used)
        ranks = next(enough, RANKS[-1])
    if model.kv_heads % ranks and ranks % model.kv_heads:
        raise BadRequest(f"{model.kv_heads} KV heads cannot be dealt out to {ranks} ranks")
    setting = Setting(card, model, dtype, ranks, weights, used_share)
    if setting.pool_bytes < setting.token_bytes * WINDOW_TOKENS:
        raise BadRequest(
            f"{model.name}: weights of {weights / ranks / 1e9:.1f} GB a rank leave no room for KV in {used_share:g} of "
            f"{card.memory_bytes / 1e9:g} GB ({card.name}): more --tensor-parallel, or --weights if they are quantised"
        )
    return setting
