"""What tests of the transformers cache share: tiny random models, stores for them, and generation to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.0")

from kvstore.bench.far import LANES  # noqa: E402
from kvstore.bench.far import only as lane  # noqa: E402
from kvstore.client import SyncClient  # noqa: E402
from kvstore.cluster import LocalCluster  # noqa: E402
from kvstore.integrations.transformers import StoreCache, layout_of  # noqa: E402
from kvstore.integrations.transformers.columns import Columns  # noqa: E402
from kvstore.keys import Keys  # noqa: E402
from kvstore.layout import Layout  # noqa: E402
from tests.kvstore.nixl_rig import NEEDS_NIXL  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 97
PAD, EOS = 0, 1
BLOCK = 8
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
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
    "mistral-self": ("Mistral", {"sliding_window": 1}),
    "gemma2": ("Gemma2", {"head_dim": 8, "sliding_window": 12}),
}
"""`gemma2` has window and full layers in turn."""

TRANSPORTS = ("mapped", *(pytest.param(f"nixl-{lane}", marks=NEEDS_NIXL) for lane in LANES))
TOKENS = 10
"""A reply of so many crosses the end of a block."""


@cache
def model_of(kind: str, seed: int = 0) -> Any:
    """`new_model`, one object for all tests: not to be changed."""
    return new_model(kind, seed=seed)


def new_model(kind: str, *, seed: int = 0, dtype: Any = None, **changes: Any) -> Any:
    """A random model, the same for the same arguments; it knows no end-of-sequence token."""
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
    transport: str


@contextmanager
def store_for(
    model: Any, *, shards: int = 1, blocks: int = 2048, transport: str = "mapped", **options: Any
) -> Iterator[Store]:
    """A store with this model's layout, in blocks of 8 tokens, and a client of it."""
    layout = layout_for(model)
    options = {"placement": "head-group", "nixl": transport != "mapped", **options}
    with (
        lane(transport.removeprefix("nixl-")) if transport != "mapped" else nullcontext(),
        LocalCluster(shards, layout, blocks, **options) as cluster,
        client_at(cluster.targets, layout, transport) as client,
    ):
        yield Store(cluster, client, layout, transport)


def layout_for(model: Any) -> Layout:
    """Two layers of two head groups: four columns, one for each of four shards."""
    return layout_of(model, model_id="tiny", block_tokens=BLOCK, window_tokens=64, head_groups=2)


def client_at(targets: str, layout: Layout, transport: str = "mapped") -> SyncClient:
    """A client by one transport and, for nixl, over one lane (as the environment is while the store's is set)."""
    return SyncClient(targets, layout, transport=transport.partition("-")[0])


GREEDY = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True}


def reference(model: Any, ids: Any, mask: Any = None, tokens: int = TOKENS) -> Any:
    """Greedy generation with transformers' own DynamicCache."""
    mask = torch.ones_like(ids) if mask is None else mask
    return model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=tokens, **GREEDY)


def generated(by: StoreCache, model: Any, tokens: int = TOKENS) -> Any:
    """The same with a StoreCache."""
    return model.generate(**by.generate_inputs, max_new_tokens=tokens, **GREEDY)


def require_equal(got: Any, expected: Any) -> None:
    """The same tokens; logits within 1e-5 at every step."""
    assert got.sequences.tolist() == expected.sequences.tolist()
    worst = max(float((a - b).abs().max()) for a, b in zip(got.logits, expected.logits, strict=True))
    assert worst <= 1e-5


def keys_of(of: StoreCache, blocks: list[int], row: int = 0) -> Keys:
    """Keys of full blocks of a row, in all layers."""
    digests = of._rows[row].history.chain.digests
    columns = Columns(of.layout)
    return np.concatenate([columns.block(digests[index], index) for index in blocks] or [np.zeros((0, 4), np.uint64)])


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
