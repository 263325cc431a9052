"""Whose KV it is: another model's is never taken, and what the cache cannot do right is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra transformers)")
pytest.importorskip("transformers", reason="transformers is not installed (extra transformers)")

import torch
import transformers

from kvstore.client import SyncClient
from kvstore.cluster import LocalCluster
from kvstore.errors import BadRequest
from kvstore.integrations.transformers import StoreCache, identity_of, layout_of
from tests.kvstore.transformers_rig import (
    BLOCK,
    Store,
    generated,
    ids_of,
    model_of,
    new_model,
    padded,
    reference,
    require_equal,
    store_for,
)


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with store_for(model_of("llama")) as running:
        yield running


@pytest.fixture(scope="module")
def known(store: Store) -> Any:
    """A prompt whose KV by the first model is in the store."""
    model = model_of("llama")
    ids = ids_of(25, seed=1)
    with StoreCache.open(store.client, model, ids, session="first") as cache:
        generated(cache, model, tokens=2)
    return ids


def test_the_same_model_built_again_is_the_same(store: Store, known: Any) -> None:
    again = new_model("llama", seed=5)
    again.load_state_dict(model_of("llama").state_dict())
    with StoreCache.open(store.client, again, known) as cache:
        assert cache.matched == [24]


OTHERS = {
    "weights": lambda: new_model("llama", seed=2),
    "RoPE": lambda: new_model("llama", rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
    "norm": lambda: new_model("llama", rms_norm_eps=1e-3),
    "architecture": lambda: model_of("qwen2"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_model_takes_nothing(store: Store, known: Any, what: str) -> None:
    other = OTHERS[what]()
    with StoreCache.open(store.client, other, known, session="first") as cache:
        assert cache.matched == [0]
        require_equal(generated(cache, other, tokens=4), reference(other, known, tokens=4))


@pytest.mark.parametrize("how", ["counted", "behind torch's back"])
def test_weights_that_change_are_another_model(store: Store, known: Any, how: str) -> None:
    model = new_model("llama")
    with StoreCache.open(store.client, model, known) as cache:
        assert cache.matched == [24]
    weights = model.model.layers[1].self_attn.v_proj.weight
    with torch.no_grad():
        (weights if how == "counted" else weights.data).mul_(1.001)
    with StoreCache.open(store.client, model, known) as cache:
        assert cache.matched == [0]


def test_a_revision_stands_for_the_weights_and_an_adapter_makes_others() -> None:
    model = new_model("llama")
    names = [
        identity_of(model),
        identity_of(model, revision="a"),
        identity_of(model, revision="b"),
        identity_of(model, adapter="x"),
        identity_of(new_model("llama", dtype=torch.bfloat16)),
    ]
    assert len(set(names)) == len(names)
    assert identity_of(model_of("llama", 1), revision="a") == names[1]
    model.peft_config = {}
    with pytest.raises(BadRequest, match="adapter"):
        identity_of(model)


def test_a_tenants_salt_keeps_tenants_apart() -> None:
    model = model_of("llama")
    ids = ids_of(25, seed=2)
    layout = layout_of(model, block_tokens=BLOCK, window_tokens=64, salt=b"tenant")
    with LocalCluster(1, layout, 512) as cluster, SyncClient(cluster.targets, layout) as client:
        with StoreCache.open(client, model, ids, salt=b"tenant") as cache:
            generated(cache, model, tokens=2)
        with StoreCache.open(client, model, ids, salt=b"tenant") as cache:
            assert cache.matched == [24]
        with pytest.raises(BadRequest, match="'salt'"):
            StoreCache.open(client, model, ids)


# --- refused by name ------------------------------------------------------------------------------------------------


def test_a_layout_that_is_not_the_models(store: Store, known: Any) -> None:
    for kind, changes, field in (
        ("llama", {"num_hidden_layers": 3}, "layers"),
        ("llama", {"num_key_value_heads": 4}, "heads"),
        ("qwen3", {"head_dim": 16}, "head_dim"),
        ("llama", {"dtype": torch.bfloat16}, "dtype"),
    ):
        with pytest.raises(BadRequest, match=f"'{field}'"):
            StoreCache.open(store.client, new_model(kind, **changes), known)


def test_models_that_no_token_chain_describes() -> None:
    tiny = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    long = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    t5 = transformers.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    mamba = transformers.MambaConfig(vocab_size=97, hidden_size=32, state_size=4, num_hidden_layers=2)
    llama4 = transformers.Llama4TextConfig(**tiny, **heads, head_dim=8, intermediate_size_mlp=48, num_local_experts=2)
    for config, why in (
        (transformers.LlamaConfig(**tiny, **heads, rope_parameters=long), "rope_type 'dynamic'"),
        (t5, "encoder-decoder"),
        (mamba, "only attention layers|LinearAttention|Mamba|layer"),
        (llama4, "chunked_attention"),
    ):
        model = type("Model", (), {"config": config, "dtype": torch.float32})()
        with pytest.raises(BadRequest, match=why):
            layout_of(model)


def test_batches_and_sessions_that_cannot_be(store: Store) -> None:
    model = model_of("llama")
    ids, mask = padded([ids_of(12, seed=3)[0], ids_of(9, seed=4)[0]])
    for options, why in (
        ({"attention_mask": mask.flip(-1)}, "at the left only"),
        ({"attention_mask": mask[:, 1:]}, "attention mask"),
        ({"attention_mask": torch.zeros_like(mask)}, "row 0 .* nothing but padding"),
        ({"session": "one"}, "2 rows need 2 sessions"),
        ({"session": ["one", "one"]}, "cannot be one session"),
        ({"session": [0, 1]}, "number"),
    ):
        with pytest.raises(BadRequest, match=why):
            StoreCache.open(store.client, model, ids, **options)
    with pytest.raises(BadRequest, match=r"model\.eval"):
        StoreCache.open(store.client, new_model("llama").train(), ids)


def test_sessions_need_a_placement_that_keeps_tails_and_blocks_together() -> None:
    model = model_of("llama")
    ids = ids_of(12, seed=5)
    with store_for(model, shards=2, placement="uniform") as store:
        with pytest.raises(BadRequest, match="--placement head-group"):
            StoreCache.open(store.client, model, ids, session="one")
        with StoreCache.open(store.client, model, ids) as cache:  # full blocks have no such need
            generated(cache, model, tokens=2)
        with StoreCache.open(store.client, model, ids) as cache:
            assert cache.matched == [8]


def test_forward_passes_that_would_be_wrong_in_the_store(store: Store) -> None:
    model = model_of("llama")
    ids, mask = padded([ids_of(12, seed=6)[0], ids_of(9, seed=7)[0]])
    name = next(iter({"cache", "past_key_values"} & set(inputs_of(store, model, ids, mask))))

    def refused(why: str, **changes: Any) -> None:
        cache = StoreCache.open(store.client, model, ids, attention_mask=mask, session=["r", "s"])
        given = {key: value for key, value in {**cache.forward_inputs, **changes}.items() if value is not None}
        with torch.no_grad(), pytest.raises(BadRequest, match=why):
            model(**given)
        assert cache.counts.appends == 0
        cache.close()

    refused("position_ids", position_ids=None)
    refused("position_ids must count", position_ids=torch.arange(12).expand(2, -1))
    refused("needs its attention mask", attention_mask=None)
    refused("not the one that the cache was opened with", attention_mask=torch.ones_like(mask))
    refused("not the tokens that the cache was opened for", input_ids=(ids + 1) % 90)
    refused("1 rows for a cache that was opened for 2", input_ids=ids[:1])
    refused("inputs_embeds", input_ids=None, inputs_embeds=torch.zeros(2, 12, 32))
    cache = StoreCache.open(store.client, model, ids, attention_mask=mask)
    with torch.no_grad(), pytest.raises(BadRequest, match="opened for another model"):
        model.model(input_ids=ids, attention_mask=mask, **{name: cache})
    for options in ({"num_beams": 2}, {"num_return_sequences": 2, "do_sample": True}):
        cache = StoreCache.open(store.client, model, ids, attention_mask=mask)
        with pytest.raises(BadRequest, match="beam search and several sequences a prompt are not supported"):
            model.generate(**cache.generate_inputs, max_new_tokens=3, **options)


def inputs_of(store: Store, model: Any, ids: Any, mask: Any) -> dict[str, Any]:
    with StoreCache.open(store.client, model, ids, attention_mask=mask) as cache:
        return cache.forward_inputs
