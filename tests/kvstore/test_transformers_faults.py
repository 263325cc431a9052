"""A store that fails, fills up or is torn away under a generation: it goes on, and nothing wrong is ever taken."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra transformers)")
pytest.importorskip("transformers", reason="transformers is not installed (extra transformers)")

import numpy as np
import torch
from transformers import StoppingCriteria

from kvstore.integrations.transformers import StoreCache
from kvstore.keys import block_keys
from tests.kvstore.transformers_rig import (
    GREEDY,
    TOKENS,
    Store,
    client_at,
    generated,
    ids_of,
    keys_of,
    model_of,
    reference,
    require_equal,
    store_for,
)

PROMPT = 21


class After(StoppingCriteria):
    """Does something once, after so many tokens; stops nothing."""

    def __init__(self, tokens: int, act: Callable[[], object]) -> None:
        self._tokens = tokens
        self._act = act

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        if input_ids.shape[1] == self._tokens:
            self._act()
        return torch.zeros(len(input_ids), dtype=torch.bool)


def generated_with(cache: StoreCache, model: Any, at: int, act: Callable[[], object]) -> Any:
    given = {**cache.generate_inputs, **GREEDY, "max_new_tokens": TOKENS}
    return model.generate(**given, stopping_criteria=[After(at, act)])


def test_a_shard_is_killed_in_mid_generation_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of("llama")
    ids = ids_of(PROMPT, seed=1)
    expected = reference(model, ids)
    with store_for(model, shards=2) as store:
        with StoreCache.open(store.client, model, ids, session="s", deadline_ms=500) as cache:
            require_equal(generated_with(cache, model, PROMPT + 4, lambda: store.cluster.kill(1)), expected)
            assert cache.counts.write_failures >= 1
            assert "generation goes on" in caplog.text
        with StoreCache.open(store.client, model, ids, session="s", deadline_ms=500) as cache:  # it is still away
            assert (cache.matched, cache.counts.read_failures) == ([0], 1)
            require_equal(generated(cache, model), expected)
            store.cluster.restart(1)
            assert cache.flush()
        reply = expected.sequences
        with StoreCache.open(
            store.client, model, reply, session="s"
        ) as cache:  # all that this one had was written late
            assert cache.matched == [PROMPT + TOKENS - 1]
            require_equal(generated(cache, model), reference(model, reply))


def test_a_shard_that_stands_still_costs_its_deadline_and_no_token() -> None:
    model = model_of("llama")
    ids = ids_of(PROMPT, seed=2)
    expected = reference(model, ids)
    with store_for(model, shards=2) as store:
        with StoreCache.open(store.client, model, ids, session="s", deadline_ms=300) as cache:
            stop = lambda: store.cluster.kill(1, signal.SIGSTOP)  # noqa: E731
            require_equal(generated_with(cache, model, PROMPT + 4, stop), expected)
            assert cache.counts.write_failures >= 1
        store.cluster.kill(1, signal.SIGCONT)
        longer = torch.cat([expected.sequences, ids_of(3, seed=3)], 1)
        with StoreCache.open(store.client, model, longer, session="s") as cache:
            require_equal(generated(cache, model), reference(model, longer))


def fill(store: Store, blocks: int, seed: int) -> None:
    """Other blocks into the pool, until what nobody holds has been evicted."""
    rng = np.random.default_rng(seed)
    for _ in range(0, blocks, 32):
        keys = block_keys([rng.bytes(24) for _ in range(32)], 0, 0)
        store.client.put(keys, rng.integers(0, 256, (32, store.layout.block_bytes), np.uint8))


def test_what_was_evicted_meanwhile_is_computed() -> None:
    model = model_of("qwen3")
    ids = ids_of(PROMPT, seed=4)
    expected = reference(model, ids)
    with store_for(model, blocks=128) as store:
        with StoreCache.open(store.client, model, ids) as cache:  # no session: nothing holds its blocks
            require_equal(generated_with(cache, model, PROMPT + 4, lambda: fill(store, 512, seed=1)), expected)
            assert not store.client.lookup(keys_of(cache, [0, 1])).found.any()
        longer = torch.cat([expected.sequences, ids_of(3, seed=5)], 1)
        with StoreCache.open(store.client, model, longer, session="held") as cache:
            assert cache.matched == [0]
            require_equal(generated(cache, model), reference(model, longer))
        fill(store, 512, seed=2)
        with StoreCache.open(store.client, model, longer, session="held") as cache:
            assert cache.matched == [32]  # the full blocks of 34 tokens: what a session holds is not evicted


def test_a_pool_that_sessions_hold_altogether_takes_no_more_and_says_so() -> None:
    model = model_of("llama")
    with store_for(model, blocks=16) as store:  # four blocks of four columns
        for number in range(3):
            ids = ids_of(PROMPT, seed=10 + number)
            with StoreCache.open(store.client, model, ids, session=f"s{number}") as cache:
                require_equal(generated(cache, model), reference(model, ids))
        assert cache.counts.write_failures >= 1


def test_a_block_that_is_not_whole_in_all_layers_is_none() -> None:
    model = model_of("llama")
    ids = ids_of(PROMPT, seed=20)
    with store_for(model) as store:
        with StoreCache.open(store.client, model, ids, session="t") as cache:
            generated(cache, model)
        one_layer = keys_of(cache, [1])[1:2]
        assert store.client.remove(one_layer).all()
        with StoreCache.open(store.client, model, ids, session="t") as cache:
            assert cache.matched == [8]
            require_equal(generated(cache, model), reference(model, ids))


def test_two_that_write_one_session_are_both_right() -> None:
    model = model_of("llama")
    ids = ids_of(PROMPT, seed=30)
    expected = reference(model, ids)
    other = torch.cat([ids[:, :-1], (ids[:, -1:] + 1) % 90 + 2], 1)
    with store_for(model) as store:
        with (
            StoreCache.open(store.client, model, ids, session="one") as here,
            StoreCache.open(store.client, model, other, session="one") as there,
        ):
            got = generated_with(
                here, model, PROMPT + 2, lambda: require_equal(generated(there, model), reference(model, other))
            )
            require_equal(got, expected)
            assert here.counts.conflicts + there.counts.conflicts >= 1
        for history in (ids, other):
            with StoreCache.open(store.client, model, history, session="one") as cache:
                require_equal(generated(cache, model), reference(model, history))


def test_a_client_that_was_closed_is_a_store_that_is_away() -> None:
    model = model_of("llama")
    ids = ids_of(PROMPT, seed=50)
    with store_for(model) as store:
        other = client_at(store.cluster.targets, store.layout)
        with StoreCache.open(other, model, ids, session="s") as cache:
            require_equal(generated_with(cache, model, PROMPT + 2, other.close), reference(model, ids))
            assert cache.counts.write_failures >= 1
        with StoreCache.open(store.client, model, ids, session="s") as cache:
            assert cache.matched == [PROMPT - 1]  # the prompt and one token more were written


def test_guesses_that_were_wrong_are_taken_back() -> None:
    """Assisted decoding crops the cache; what the store then has is what was kept."""
    model = model_of("llama")
    ids = ids_of(PROMPT, seed=40)
    ids[0, 10:20] = ids[0, :10]  # something for prompt lookup to guess from
    plain: dict[str, Any] = {"do_sample": False, "max_new_tokens": 24}
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), **plain)
    with store_for(model) as store:
        with StoreCache.open(store.client, model, ids, session="guess") as cache:
            got = model.generate(**cache.generate_inputs, prompt_lookup_num_tokens=4, **plain)
            assert cache.counts.computed_columns > PROMPT + 24, "no guess was ever wrong: nothing is shown"
        assert got.tolist() == expected.tolist()
        longer = torch.cat([got, ids_of(5, seed=41)], 1)
        with StoreCache.open(store.client, model, longer, session="guess") as cache:
            assert cache.past >= PROMPT + 24 - 1
            require_equal(generated(cache, model), reference(model, longer))
