"""The transformers cache on four shards: batches, chunks, dtypes, ends of rows, and what one step costs the store."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed (extra transformers)")
pytest.importorskip("transformers", reason="transformers is not installed (extra transformers)")

import torch

from kvstore.errors import BadRequest
from kvstore.integrations.transformers import StoreCache
from tests.kvstore.transformers_rig import (
    BLOCK,
    EOS,
    Computed,
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
    with store_for(model_of("llama"), shards=4) as running:
        yield running


def test_a_row_of_a_batch_goes_on_alone(store: Store) -> None:
    """Padding is in no chain: what was computed in a padded batch is found without it."""
    model = model_of("llama")
    rows = [ids_of(count, seed=50 + count)[0] for count in (30, 17, 25)]
    ids, mask = padded(rows)
    with StoreCache.open(store.client, model, ids, attention_mask=mask, session=["a", "b", "c"]) as cache:
        both = generated(cache, model)
    alone = torch.cat([rows[1], both.sequences[1, 30:], ids_of(4, seed=9)[0]])[None]
    with StoreCache.open(store.client, model, alone, session="b") as cache:
        assert cache.matched == [17 + 9]  # the last token of the reply was never computed
        require_equal(generated(cache, model), reference(model, alone))


def test_whoever_has_the_same_prefix_shares_its_full_blocks(store: Store) -> None:
    model = model_of("qwen2", seed=3)
    prompt = ids_of(20, seed=77)
    with StoreCache.open(store.client, model, prompt) as cache:  # no session at all
        generated(cache, model)
    longer = torch.cat([prompt, ids_of(9, seed=78)], 1)
    with StoreCache.open(store.client, model, longer, session="somebody else") as cache:
        assert cache.matched == [2 * BLOCK]
        require_equal(generated(cache, model), reference(model, longer))


def test_a_step_is_one_append_for_all_layers(store: Store) -> None:
    model = model_of("llama", seed=4)
    ids = ids_of(21, seed=5)
    with StoreCache.open(store.client, model, ids, session="steps") as cache, Computed(model) as computed:
        generated(cache, model, tokens=20)
        assert computed.lengths == [21] + [1] * 19
        assert (cache.counts.forwards, cache.counts.computed_columns) == (20, 40)
        # The prompt: a put of its full blocks and its tail. Then an append a step, whatever the number of layers.
        assert (cache.counts.puts, cache.counts.appends) == (1, 20)


def test_a_plain_forward_pass(store: Store) -> None:
    model = model_of("llama", seed=6)
    ids, mask = padded([ids_of(19, seed=6)[0], ids_of(11, seed=7)[0]])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, -1]
        for past in (0, 18):
            with StoreCache.open(store.client, model, ids, attention_mask=mask, session=["f", "g"]) as cache:
                assert cache.past == past
                given = cache.forward_inputs
                assert given["input_ids"].shape[1] == 19 - past
                torch.testing.assert_close(model(**given).logits[:, -1], expected, atol=1e-5, rtol=0)


def test_the_prompt_may_be_computed_in_chunks(store: Store) -> None:
    model = model_of("mistral", seed=8)
    ids = ids_of(37, seed=8)
    expected = reference(model, ids)
    with StoreCache.open(store.client, model, ids, session="chunks") as cache, Computed(model) as computed:
        options: dict[str, Any] = {"prefill_chunk_size": 10, "do_sample": False, "max_new_tokens": 10}
        got = model.generate(**cache.generate_inputs, **options)
        assert computed.lengths[:4] == [10, 10, 10, 7]
    assert got.tolist() == expected.sequences.tolist()
    with StoreCache.open(store.client, model, expected.sequences, session="chunks") as cache:
        assert cache.matched == [37 + 9]


def test_a_padded_prompt_may_be_computed_in_chunks(store: Store) -> None:
    """The short row has not begun in the first two."""
    model = model_of("mistral", seed=12)
    ids, mask = padded([ids_of(count, seed=count)[0] for count in (33, 9)])
    options: dict[str, Any] = {"prefill_chunk_size": 10, "do_sample": False, "max_new_tokens": 4}
    with StoreCache.open(store.client, model, ids, attention_mask=mask, session=["ca", "cb"]) as cache:
        got = model.generate(**cache.generate_inputs, **options)
    assert got.tolist() == reference(model, ids, mask, tokens=4).sequences.tolist()
    again = torch.cat([got[1:, 24:], ids_of(2, seed=13)], 1)
    with StoreCache.open(store.client, model, again, session="cb") as cache:
        assert cache.matched == [9 + 3]
        require_equal(generated(cache, model, tokens=3), reference(model, again, tokens=3))


def test_what_cannot_be_is_said_as_it_is(store: Store) -> None:
    model = model_of("llama", seed=13)
    ids, mask = padded([ids_of(20, seed=40)[0], ids_of(6, seed=41)[0]])
    with StoreCache.open(store.client, model, ids, attention_mask=mask) as cache:
        with pytest.raises(BadRequest, match="use_cache=False"):
            model.generate(**cache.generate_inputs, max_new_tokens=3, do_sample=False, use_cache=False)
        with pytest.raises(BadRequest, match="cannot take 100 tokens back: the cache has 20"):
            cache.crop(-100)
    given = cache.generate_inputs
    for call in (lambda: cache.crop(-1), cache.reset, lambda: model.generate(**given, max_new_tokens=3)):
        with pytest.raises(BadRequest, match="this cache was closed"):
            call()
    hidden = mask.clone()
    hidden[1] = 0
    with pytest.raises(BadRequest, match="row 1 of the batch is nothing but padding"):
        StoreCache.open(store.client, model, ids, attention_mask=hidden)


def test_a_cache_that_was_dropped_holds_no_session(store: Store) -> None:
    model = model_of("llama", seed=14)
    cache = StoreCache.open(store.client, model, ids_of(9, seed=42), session="dropped")
    before = len(store.client.client.held())
    generated(cache, model, tokens=2)
    del cache
    gc.collect()
    store.client.lookup(np.zeros((0, 4), np.uint64))  # what was submitted before it is done
    assert len(store.client.client.held()) == before - 1


def test_a_row_that_has_ended_keeps_its_history(store: Store) -> None:
    """`generate` feeds padding to rows that have ended while others go on: that is no part of their chain."""
    model = new_model("llama", seed=9)
    ids, mask = padded([ids_of(12, seed=20)[0], ids_of(12, seed=21)[0]])
    first = reference(model, ids, mask, tokens=30).sequences
    model.generation_config.eos_token_id = int(first[0, 12 + 3])
    assert int(first[0, 15]) not in first[1, 12:24].tolist(), "the other row must go on: choose other seeds"
    expected = reference(model, ids, mask, tokens=12)
    end = first[0, 12:].tolist().index(int(first[0, 15])) + 13
    assert expected.sequences[0, end:].tolist() == [0] * (24 - end)
    with StoreCache.open(store.client, model, ids, attention_mask=mask, session=["ends", "goes on"]) as cache:
        require_equal(generated(cache, model, tokens=12), expected)
    again = torch.cat([first[:1, :end], ids_of(5, seed=22)], 1)
    with StoreCache.open(store.client, model, again, session="ends") as cache:
        assert cache.matched == [end]  # the end-of-sequence token was computed too, before the padding
        require_equal(generated(cache, model), reference(model, again))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_other_dtypes_come_back_bit_for_bit(dtype: torch.dtype) -> None:
    model = new_model("llama", dtype=dtype)
    ids = ids_of(27, seed=30)
    with store_for(model, shards=2) as store, torch.no_grad():
        assert store.layout.dtype == str(dtype).removeprefix("torch.")
        with StoreCache.open(store.client, model, ids, session="x") as first:
            model(**first.forward_inputs)
        with StoreCache.open(store.client, model, ids, session="x") as again:
            assert again.matched == [26]
            for ours, theirs in zip(again.layers, first.layers, strict=True):
                assert torch.equal(ours.keys, theirs.keys[:, :, :26])
                assert torch.equal(ours.values, theirs.values[:, :, :26])


def test_an_end_is_a_token_like_others_when_it_is_asked_for(store: Store) -> None:
    model = model_of("llama", seed=10)
    ids = ids_of(15, seed=31)
    ids[0, 7] = EOS
    with StoreCache.open(store.client, model, ids, session="eos inside") as cache:
        generated(cache, model)
    with StoreCache.open(store.client, model, ids, session="eos inside") as cache:
        assert cache.matched == [8]
