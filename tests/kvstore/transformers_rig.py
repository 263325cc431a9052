"""What tests of the transformers cache share: tiny random models, stores for them, and generation to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.0")

from kvstore.client import SyncClient  # noqa: E402
from kvstore.cluster import LocalCluster  # noqa: E402
from kvstore.integrations.transformers import StoreCache, layout_of  # noqa: E402
from kvstore.layout import Layout  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 97
PAD, EOS = 0, 1
BLOCK = 8
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 20}),
    "mistral-narrow": ("Mistral", {"sliding_window": 5}),
    "gemma2": ("Gemma2", {"head_dim": 8, "sliding_window": 12}),
}
"""`gemma2` has window and full layers in turn."""

TRANSPORTS = ("mapped",)


def model_of(kind: str, *, seed: int = 0, dtype: Any = None, **changes: Any) -> Any:
    """A random model, the same for the same arguments; no end-of-sequence token unless asked for."""
    torch.set_num_threads(1)
    name, extra = _KINDS[kind]
    config = getattr(transformers, f"{name}Config")(**{**_SIZES, **extra, **changes})
    config.pad_token_id, config.eos_token_id, config.bos_token_id = PAD, None, None
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = PAD, None
    return model if dtype is None else model.to(dtype)


def ids_of(tokens: int, *, seed: int = 0, rows: int = 1) -> Any:
    """Random ids `[rows, tokens]`, none of them padding or an end."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randint(2, VOCABULARY, (rows, tokens), generator=generator)


def padded(rows: list[Any]) -> tuple[Any, Any]:
    """Rows of ids, padded at the left to one length, and their mask."""
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), PAD)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, longest - len(row) :] = row
        mask[number, longest - len(row) :] = 1
    return ids, mask


@dataclass
class Store:
    cluster: LocalCluster
    client: SyncClient
    layout: Layout


@contextmanager
def store_for(
    model: Any, *, shards: int = 1, blocks: int = 2048, transport: str = "mapped", **options: Any
) -> Iterator[Store]:
    """A store with this model's layout, in blocks of 8 tokens, and a client of it."""
    head_groups = options.pop("head_groups", 1)
    layout = layout_of(model, model_id="tiny", block_tokens=BLOCK, window_tokens=64, head_groups=head_groups)
    options = {"placement": "head-group", **options}
    with (
        LocalCluster(shards, layout, blocks, **options) as cluster,
        client_of(cluster, layout, transport) as client,
    ):
        yield Store(cluster, client, layout)


def client_of(cluster: LocalCluster, layout: Layout, transport: str = "mapped") -> SyncClient:
    assert transport == "mapped"
    return SyncClient(cluster.targets, layout)


_GREEDY = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True}


def reference(model: Any, ids: Any, mask: Any = None, tokens: int = 12) -> Any:
    """Greedy generation with transformers' own DynamicCache."""
    mask = torch.ones_like(ids) if mask is None else mask
    return model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=tokens, **_GREEDY)


def generated(cache: StoreCache, model: Any, tokens: int = 12) -> Any:
    """The same with a StoreCache."""
    return model.generate(**cache.generate_inputs, max_new_tokens=tokens, **_GREEDY)


def require_equal(got: Any, expected: Any) -> None:
    """The same tokens; logits within 1e-5 at every step."""
    assert got.sequences.tolist() == expected.sequences.tolist()
    worst = max(float((a - b).abs().max()) for a, b in zip(got.logits, expected.logits, strict=True))
    assert worst <= 1e-5


class Computed:
    """How many positions each forward pass of a model is given: from the pass's own input, not from any cache."""

    def __init__(self, model: Any) -> None:
        self.lengths: list[int] = []
        self._handle = model.model.register_forward_pre_hook(self._saw, with_kwargs=True)

    def _saw(self, module: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.lengths.append(ids.shape[1])

    def __enter__(self) -> Computed:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()
