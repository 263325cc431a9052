"""Layers with a sliding window: equal to transformers' own, and only what a window still needs has to be there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra transformers)")
pytest.importorskip("transformers", reason="transformers is not installed (extra transformers)")

import numpy as np
import torch

from kvstore.integrations.transformers import StoreCache
from kvstore.keys import parts
from tests.kvstore.transformers_rig import (
    TOKENS,
    Computed,
    Store,
    generated,
    ids_of,
    keys_of,
    model_of,
    padded,
    reference,
    require_equal,
    store_for,
)

KINDS = ("mistral-window", "mistral-narrow", "gemma2")


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with store_for(model_of("mistral-window"), shards=2) as running:
        yield running


@pytest.mark.parametrize("kind", KINDS)
def test_windows_that_are_passed(store: Store, kind: str) -> None:
    """A prompt longer than the window, a reply that runs on, three rows; then again, and longer, from the store."""
    model = model_of(kind)
    ids, mask = padded([ids_of(count, seed=count)[0] for count in (45, 15, 33)])
    sessions = [f"{kind} {row}" for row in range(3)]
    expected = reference(model, ids, mask)
    with StoreCache.open(store.client, model, ids, attention_mask=mask, session=sessions) as cache:
        require_equal(generated(cache, model), expected)
    more = torch.cat([expected.sequences, ids_of(7, seed=3, rows=3)], 1)
    mask = torch.cat([mask, torch.ones(3, TOKENS + 7, dtype=mask.dtype)], 1)
    with (
        StoreCache.open(store.client, model, more, attention_mask=mask, session=sessions) as cache,
        Computed(model) as computed,
    ):
        assert cache.past >= 45 + 3
        require_equal(generated(cache, model), reference(model, more, mask))
        assert computed.lengths[0] == 45 + TOKENS + 7 - cache.past


def test_a_window_of_one_token_needs_nothing_that_was_before(store: Store) -> None:
    """Compared with the whole sequence at once: of a window of 1, transformers' own layer keeps everything."""
    model = model_of("mistral-self")
    ids, mask = padded([ids_of(count, seed=count)[0] for count in (24, 9)])
    for past in (0, 23):
        with StoreCache.open(store.client, model, ids, attention_mask=mask, session=["self 0", "self 1"]) as cache:
            assert cache.past == past
            got = generated(cache, model, tokens=3)
        whole = torch.cat([mask, torch.ones(2, 3, dtype=mask.dtype)], 1)
        positions = (whole.cumsum(-1) - 1).clamp(min=0)
        given = {"input_ids": got.sequences, "attention_mask": whole, "position_ids": positions}
        with torch.no_grad():
            expected = model(**given, use_cache=False).logits[:, 23:-1]
        torch.testing.assert_close(torch.stack(got.logits, 1), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["mistral-window", "gemma2"])
def test_blocks_before_the_window_may_be_gone(kind: str) -> None:
    model = model_of(kind)
    ids = ids_of(61, seed=5)
    expected = reference(model, ids)
    with store_for(model) as store:
        with StoreCache.open(store.client, model, ids) as cache:
            generated(cache, model)

        def lose(blocks: list[int], *, in_windows_only: bool) -> None:
            keys = keys_of(cache, blocks)
            layers, _, _ = parts(keys)
            windows = np.array([layer.is_sliding for layer in cache.layers])
            assert store.client.remove(keys[windows[layers]] if in_windows_only else keys).all()

        # At 56 a window of 20 begins in block 4. Computing writes what was computed: block 5 is lost a second time.
        for lost, windows_only, held in (([0, 1], True, 56), ([5], False, 40), ([3, 5], False, 0)):
            lose(lost, in_windows_only=windows_only)
            with StoreCache.open(store.client, model, ids) as again, torch.no_grad():
                assert again.matched == [held]
                logits = model(**again.forward_inputs).logits[:, -1]
                assert float((logits - expected.logits[0]).abs().max()) <= 1e-5
