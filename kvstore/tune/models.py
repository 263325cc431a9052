"""Models by what their KV takes: layers, KV heads, head size; and parameters, whose weights leave the room for it."""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Model:
    """Full attention in every layer. `parameters` counts all that lie in memory (of experts, all of them)."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    parameters: int
    source: str


MODELS = {
    model.name: model
    for model in (
        Model("llama-2-7b", 32, 32, 128, 6_738_415_616, "config.json of meta-llama/Llama-2-7b-hf"),
        Model("llama-3-8b", 32, 8, 128, 8_030_261_248, "config.json of meta-llama/Meta-Llama-3-8B (3.1: the same)"),
        Model(
            "llama-3-70b", 80, 8, 128, 70_553_706_496, "config.json of meta-llama/Meta-Llama-3-70B (3.1, 3.3: the same)"
        ),
        Model("llama-3.1-405b", 126, 8, 128, 405_853_388_800, "config.json of meta-llama/Llama-3.1-405B"),
        Model("mistral-7b", 32, 8, 128, 7_248_023_552, "config.json of mistralai/Mistral-7B-v0.3"),
        Model("mixtral-8x7b", 32, 8, 128, 46_702_792_704, "config.json of mistralai/Mixtral-8x7B-v0.1"),
        Model("qwen2.5-7b", 28, 4, 128, 7_615_616_512, "config.json of Qwen/Qwen2.5-7B"),
        Model("qwen2.5-72b", 80, 8, 128, 72_706_203_648, "config.json of Qwen/Qwen2.5-72B"),
        Model("qwen3-8b", 36, 8, 128, 8_190_735_360, "config.json of Qwen/Qwen3-8B"),
        Model("qwen3-32b", 64, 8, 128, 32_762_123_264, "config.json of Qwen/Qwen3-32B"),
    )
}
"""Parameters follow from each configuration's sizes (matrices, biases, norms; embedding and head counted apart unless
tied), as `tests/kvstore/test_tune_tables.py` recomputes them."""


def model_of(name: str) -> Model:
    """The model called `name`. Raises `BadRequest`."""
    found = MODELS.get(name.lower().replace("_", "-"))
    if found is None:
        raise BadRequest(
            f"no model {name!r}; there are {', '.join(MODELS)}; or say --layers, --kv-heads, --head-dim and --weights"
        )
    return found
