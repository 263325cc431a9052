"""Generation from a pool's pages is generation with transformers' own cache, and it is the kernel that attends."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import tests.kernels.conftest  # noqa: F401 – Triton's interpreter is switched on before anything imports triton

pytest.importorskip("torch", reason="torch is not installed (extra transformers)")
pytest.importorskip("transformers", reason="transformers is not installed (extra transformers)")

import torch

from kvstore.device import DevicePool
from kvstore.errors import BadRequest, PoolExhausted
from kvstore.integrations.transformers import PagedCache, StoreCache
from kvstore.integrations.transformers.paged import NAME, calls, pool_for
from kvstore.kernels.decode import op
from kvstore.kernels.language import interpreted
from tests.kvstore.transformers_rig import (
    Computed,
    Store,
    generated,
    ids_of,
    new_model,
    padded,
    reference,
    require_equal,
    store_for,
)

KINDS = ("llama", "qwen3", "mistral-narrow")
PADDED_KINDS = ("llama", "gemma2")
TOKENS = 3
LAYERS = 2
DEVICE = "cuda" if torch.cuda.is_available() and not interpreted() else "cpu"

needs_kernel = pytest.mark.skipif(
    DEVICE == "cpu" and not interpreted(), reason="no GPU, and no interpreter for the kernel"
)


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with store_for(new_model("llama"), shards=1) as running:
        yield running


def models_of(kind: str, seed: int = 0) -> tuple[Any, Any]:
    """One model twice: as transformers computes it, and with attention from pages."""
    plain, paged = new_model(kind, seed=seed).to(DEVICE), new_model(kind, seed=seed).to(DEVICE)
    paged.set_attn_implementation(NAME)
    return plain, paged


def prompt_of(tokens: int, *, seed: int, rows: int = 1) -> Any:
    return ids_of(tokens, seed=seed, rows=rows).to(DEVICE)


def prompts_of(*counts: int) -> tuple[Any, Any]:
    """A row of each length, padded at the left, and their mask."""
    ids, mask = padded([ids_of(count, seed=count)[0] for count in counts])
    return ids.to(DEVICE), mask.to(DEVICE)


def more_of(mask: Any, columns: int) -> Any:
    return torch.cat([mask, torch.ones(len(mask), columns, dtype=mask.dtype, device=mask.device)], 1)


class Kernel:
    """How often the kernel ran within a `with`, and how often its reference did."""

    def __enter__(self) -> Kernel:
        self._before = (calls.kernel, calls.reference)
        return self

    def __exit__(self, *_: object) -> None:
        self.ran, self.stood_in = calls.kernel - self._before[0], calls.reference - self._before[1]


@needs_kernel
@pytest.mark.parametrize("kind", KINDS)
def test_one_row(store: Store, kind: str) -> None:
    """A prompt longer than any window; then, from the store, its continuation: a decode step from the first."""
    plain, paged = models_of(kind)
    ids = prompt_of(29, seed=1)
    expected = reference(plain, ids, tokens=TOKENS)
    with PagedCache.open(store.client, paged, ids, session=f"one {kind}") as cache, Kernel() as kernel:
        require_equal(generated(cache, paged, tokens=TOKENS), expected)
    assert (kernel.ran, kernel.stood_in) == ((TOKENS - 1) * LAYERS, 0)
    with (
        PagedCache.open(store.client, paged, expected.sequences, session=f"one {kind}") as cache,
        Computed(paged) as computed,
        Kernel() as kernel,
    ):
        assert cache.matched == [29 + TOKENS - 1]
        require_equal(generated(cache, paged, tokens=2), reference(plain, expected.sequences, tokens=2))
    assert computed.lengths == [1, 1]
    assert (kernel.ran, kernel.stood_in) == (2 * LAYERS, 0)


@needs_kernel
@pytest.mark.parametrize("kind", PADDED_KINDS)
def test_three_padded_rows(store: Store, kind: str) -> None:
    """Padding is in no page. The second time some of the prompt is in the store, and a long part of it is not."""
    plain, paged = models_of(kind)
    ids, mask = prompts_of(31, 9, 22)
    sessions = [f"{kind} {row}" for row in range(3)]
    expected = reference(plain, ids, mask, tokens=TOKENS)
    given: dict[str, Any] = {"attention_mask": mask, "session": sessions}
    with PagedCache.open(store.client, paged, ids, **given) as cache, Kernel() as kernel:
        require_equal(generated(cache, paged, tokens=TOKENS), expected)
    assert kernel.ran == (TOKENS - 1) * LAYERS
    more = torch.cat([expected.sequences, prompt_of(13, seed=3, rows=3)], 1)
    given["attention_mask"] = mask = more_of(mask, TOKENS + 13)
    with PagedCache.open(store.client, paged, more, **given) as cache, Computed(paged) as computed:
        require_equal(generated(cache, paged, tokens=3), reference(plain, more, mask, tokens=3))
        assert computed.lengths == [14, 1, 1]


@needs_kernel
def test_what_is_computed_from_pages_is_in_the_store(store: Store) -> None:
    """A cache in tensors goes on where one in pages has ended, and the other way round."""
    plain, paged = models_of("qwen3", seed=5)
    first = reference(plain, prompt_of(12, seed=5), tokens=6).sequences
    second = reference(plain, first, tokens=6)
    with PagedCache.open(store.client, paged, first[:, :12], session="both") as cache:
        assert generated(cache, paged, tokens=6).sequences.tolist() == first.tolist()
    with StoreCache.open(store.client, plain, first, session="both") as cache:
        assert cache.matched == [17]
        require_equal(generated(cache, plain, tokens=6), second)
    with PagedCache.open(store.client, paged, second.sequences, session="both") as cache:
        assert cache.matched == [23]
        require_equal(generated(cache, paged, tokens=2), reference(plain, second.sequences, tokens=2))


@needs_kernel
def test_several_tokens_a_step_and_steps_taken_back(store: Store) -> None:
    """As assisted decoding does: five tokens at once, three of them wrong, in a batch."""
    plain, paged = models_of("mistral-window", seed=6)
    ids, mask = prompts_of(26, 10)
    cut = 19
    with (
        PagedCache.open(store.client, paged, ids[:, :cut], attention_mask=mask[:, :cut]) as cache,
        torch.no_grad(),
    ):
        paged(**cache.forward_inputs)
        name = next(key for key in cache.forward_inputs if key in ("cache", "past_key_values"))

        def step(tokens: Any, seen: int) -> Any:
            whole = more_of(mask[:, :cut], seen - cut)
            positions = (whole.cumsum(-1) - 1)[:, -tokens.shape[1] :].clamp(min=0)
            given = {"input_ids": tokens, "attention_mask": whole, "position_ids": positions, name: cache}
            return paged(**given).logits

        wrong = torch.cat([ids[:, cut : cut + 2], prompt_of(3, seed=63, rows=2)], 1)
        with Kernel() as kernel:
            step(wrong, cut + 5)
            cache.crop(-3)
            got = step(ids[:, cut + 2 :], 26)
        assert kernel.ran == 2 * LAYERS
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        expected = plain(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(got, expected[:, cut + 2 :], atol=1e-5, rtol=0)


@needs_kernel
def test_the_prompt_may_be_computed_in_chunks(store: Store) -> None:
    """Of a chunk that is longer than a decode step attention sees what is in the pages before it."""
    plain, paged = models_of("mistral-window", seed=8)
    ids = prompt_of(37, seed=8)
    with PagedCache.open(store.client, paged, ids) as cache, Computed(paged) as computed:
        options: dict[str, Any] = {"prefill_chunk_size": 14, "do_sample": False, "max_new_tokens": 3}
        got = paged.generate(**cache.generate_inputs, **options)
        assert computed.lengths[:3] == [14, 14, 9]
    assert got.tolist() == reference(plain, ids, tokens=3).sequences.tolist()


@needs_kernel
def test_a_pool_that_is_shared_and_filled_with_nan(store: Store) -> None:
    """Caches side by side in one pool, in head groups as the store's; what is in its unused blocks is nobody's."""
    plain, paged = models_of("llama", seed=9)
    pool = DevicePool(store.layout, 16, rows=3, columns=6, device=DEVICE)
    assert store.layout.head_groups == 2
    pool.kv.fill_(float("nan"))
    first, second = prompt_of(21, seed=91), prompt_of(10, seed=92)
    with (
        PagedCache.open(store.client, paged, first, pool=pool) as one,
        PagedCache.open(store.client, paged, second, pool=pool) as two,
    ):
        require_equal(generated(one, paged, tokens=3), reference(plain, first, tokens=3))
        require_equal(generated(two, paged, tokens=3), reference(plain, second, tokens=3))
        assert pool.free < pool.blocks
    assert pool.free == pool.blocks
    assert pool.faults() == {}


@needs_kernel
def test_a_padded_prompt_may_be_computed_in_chunks(store: Store) -> None:
    """The short row has not begun in the first chunk, nor in the first decode step that is a chunk."""
    plain, paged = models_of("mistral-narrow", seed=15)
    ids, mask = prompts_of(23, 4)
    expected = reference(plain, ids, mask, tokens=2).sequences.tolist()
    for size in (7, 10):
        with PagedCache.open(store.client, paged, ids, attention_mask=mask, revision=f"chunks {size}") as cache:
            options: dict[str, Any] = {"prefill_chunk_size": size, "do_sample": False, "max_new_tokens": 2}
            assert paged.generate(**cache.generate_inputs, **options).tolist() == expected


def test_a_cache_that_was_dropped_or_closed(store: Store) -> None:
    """Its rows and blocks are its pool's again; a closed one says so."""
    _, paged = models_of("llama", seed=16)
    ids = prompt_of(17, seed=16)
    pool = pool_for(store.layout, rows=1, tokens=24, device=DEVICE)
    for _ in range(2):
        cache = PagedCache.open(store.client, paged, ids, pool=pool)
        with torch.no_grad():
            paged(**cache.forward_inputs)
        assert pool.free == 0
        assert cache.flush()
        del cache
        gc.collect()
    assert pool.free == pool.free_blocks() == pool.blocks
    with PagedCache.open(store.client, paged, ids, pool=pool) as cache:
        matched = cache.get_seq_length()
        assert matched == 16
        with pytest.raises(BadRequest, match="cannot take 100 tokens back: the cache has 16"):
            cache.crop(-100)
    inputs = cache.generate_inputs
    for call in (lambda: cache.crop(-1), cache.reset, lambda: paged.generate(**inputs, max_new_tokens=2)):
        with pytest.raises(BadRequest, match="this cache was closed"):
            call()


def test_without_a_kernel_its_reference_attends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "launches", lambda tensor: False)
    plain, paged = models_of("mistral-window")
    ids = prompt_of(25, seed=11)
    with PagedCache.open(store.client, paged, ids) as cache, Kernel() as kernel:
        require_equal(generated(cache, paged, tokens=3), reference(plain, ids, tokens=3))
    assert (kernel.ran, kernel.stood_in) == (0, 2 * LAYERS)


def test_other_caches_and_none_are_left_alone(store: Store) -> None:
    """The model computes as with sdpa where the cache is another one, also while one in pages is open."""
    plain, paged = models_of("llama")
    ids, mask = prompts_of(15, 6)
    with PagedCache.open(store.client, paged, ids, attention_mask=mask), Kernel() as kernel:
        require_equal(reference(paged, ids, mask, tokens=3), reference(plain, ids, mask, tokens=3))
    assert (kernel.ran, kernel.stood_in) == (0, 0)


def test_a_pass_that_failed_is_not_taken_for_the_next(store: Store) -> None:
    plain, paged = models_of("llama")
    ids, mask = prompts_of(15, 6)

    def fail(*_: object) -> None:
        raise RuntimeError("in the middle")

    with PagedCache.open(store.client, paged, ids, attention_mask=mask, room=8) as cache, torch.no_grad():
        paged(**cache.forward_inputs)
        handle = paged.model.layers[1].register_forward_pre_hook(fail)
        again = more_of(mask, 1)
        positions = (again.cumsum(-1) - 1)[:, -1:]
        name = next(key for key in cache.forward_inputs if key in ("cache", "past_key_values"))
        given = {"input_ids": ids[:, -1:], "attention_mask": again, "position_ids": positions, name: cache}
        with pytest.raises(RuntimeError, match="in the middle"):
            paged(**given)
        handle.remove()
        with pytest.raises(BadRequest, match="half-way"):
            paged(**given)
        require_equal(reference(paged, ids, mask, tokens=2), reference(plain, ids, mask, tokens=2))


def test_what_cannot_be_is_refused_by_name(store: Store) -> None:
    plain, paged = models_of("llama")
    ids = prompt_of(23, seed=14)
    with pytest.raises(BadRequest, match=r"model\.set_attn_implementation"):
        PagedCache.open(store.client, plain, ids)
    for room, why in ((-5, "room must lie in 0"), (1.5, "room must be a whole number"), (2**40, "room 1099511627776:")):
        with pytest.raises(BadRequest, match=why):
            PagedCache.open(store.client, paged, ids, room=room)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match=r"input_ids must be \[batch, tokens\]"):
        PagedCache.open(store.client, paged, ids[:0])
    others = replace(store.layout, layers=3)
    with pytest.raises(BadRequest, match="the pool's layers 3"):
        PagedCache.open(store.client, paged, ids, pool=pool_for(others, rows=1, tokens=24, device=DEVICE))
    small = pool_for(store.layout, rows=1, tokens=24, device=DEVICE)
    with PagedCache.open(store.client, paged, ids, pool=small) as cache:
        with pytest.raises(PoolExhausted, match="give it a larger pool"):
            generated(cache, paged, tokens=3)
        with pytest.raises(PoolExhausted, match="rows of the block table are taken"):
            PagedCache.open(store.client, paged, ids, pool=small)
    assert small.free == small.blocks
    with (
        PagedCache.open(store.client, paged, ids, room=1) as cache,
        pytest.raises(PoolExhausted, match="more room than 1"),
    ):
        generated(cache, paged, tokens=3)
