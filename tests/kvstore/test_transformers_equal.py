"""Generation through the store is generation with transformers' own cache: token for token, logits within 1e-5."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra transformers)")
pytest.importorskip("transformers", reason="transformers is not installed (extra transformers)")


import torch

from kvstore.integrations.transformers import StoreCache
from tests.kvstore.transformers_rig import (
    TOKENS,
    TRANSPORTS,
    Computed,
    Store,
    generated,
    ids_of,
    model_of,
    padded,
    reference,
    require_equal,
    store_for,
)

KINDS = ("llama", "qwen2", "qwen3", "mistral")


@pytest.fixture(scope="module", params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[1, 4])
def shards(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def store(transport: str, shards: int) -> Iterator[Store]:
    """One store for all kinds: their models have one layout, and are kept apart by what they are."""
    with store_for(model_of("llama"), shards=shards, transport=transport) as running:
        yield running


@cache
def one_row(kind: str) -> tuple[Any, Any, Any]:
    """A prompt, its reply, and what comes after that."""
    ids = ids_of(29, seed=1)
    first = reference(model_of(kind), ids)
    return ids, first, reference(model_of(kind), first.sequences, tokens=2)


@cache
def three_rows(kind: str) -> tuple[Any, Any, Any, Any, Any]:
    ids, mask = padded([ids_of(count, seed=count)[0] for count in (31, 9, 22)])
    first = reference(model_of(kind), ids, mask)
    longer = torch.cat([mask, torch.ones(3, TOKENS, dtype=mask.dtype)], 1)
    return ids, mask, first, longer, reference(model_of(kind), first.sequences, longer, tokens=2)


@pytest.mark.parametrize("kind", KINDS)
def test_one_row(store: Store, kind: str) -> None:
    model = model_of(kind)
    ids, first, second = one_row(kind)
    with StoreCache.open(store.client, model, ids, session=f"one {kind}") as kv:
        assert kv.matched == [0]
        require_equal(generated(kv, model), first)
    with (
        StoreCache.open(store.client, model, first.sequences, session=f"one {kind}") as kv,
        Computed(model) as computed,
    ):
        require_equal(generated(kv, model, tokens=2), second)
        assert kv.matched == [29 + TOKENS - 1]  # the last token of the reply was never computed
        assert computed.lengths == [1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_three_rows_of_unequal_length(store: Store, kind: str) -> None:
    model = model_of(kind)
    ids, mask, first, longer, second = three_rows(kind)
    sessions = [f"{kind} {row}" for row in range(3)]
    with StoreCache.open(store.client, model, ids, attention_mask=mask, session=sessions) as kv:
        require_equal(generated(kv, model), first)
    with (
        StoreCache.open(store.client, model, first.sequences, attention_mask=longer, session=sessions) as kv,
        Computed(model) as computed,
    ):
        require_equal(generated(kv, model, tokens=2), second)
        assert kv.matched == [count + TOKENS - 1 for count in (31, 9, 22)]
        assert computed.lengths == [1, 1]
