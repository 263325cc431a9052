"""A cache whose KV lies in the pages of a device pool: decode steps attend to it where it is, nothing is materialised.

What the store has of the tokens goes into the pages when it is opened, and what is computed is written through, as with
`StoreCache`.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from kvstore.arguments import whole_number
from kvstore.client import SyncClient
from kvstore.device import DevicePool
from kvstore.errors import BadRequest, PoolExhausted
from kvstore.integrations.transformers.cache import StoreCache
from kvstore.integrations.transformers.identity import text_config, windows_of
from kvstore.integrations.transformers.paged_attention import NAME, enter, leave
from kvstore.integrations.transformers.paged_batch import PagedBatch
from kvstore.integrations.transformers.paged_layer import PagedLayer
from kvstore.integrations.transformers.steps import pads_of, require_ids
from kvstore.kernels.decode import calls
from kvstore.kernels.decode.pages import BLOCK_TOKENS, HEAD_DIMS
from kvstore.layout import Layout

__all__ = ["NAME", "PagedCache", "calls", "pool_for"]

ROOM = 1024
"""Tokens that each row may get behind its prompt, unless told otherwise."""


def pool_for(layout: Layout, *, rows: int, tokens: int, device: torch.device | str) -> DevicePool:
    """A pool for `rows` sequences of at most `tokens` tokens, all KV heads of a layer in one plane."""
    columns = -(-tokens // layout.block_tokens)
    whole = replace(layout, head_groups=1, heads=layout.head_groups * layout.heads)
    return DevicePool(whole, rows * columns, rows=rows, columns=columns, device=device)


class PagedCache(StoreCache):
    """A `StoreCache` in pages, for a model whose attention implementation is `kvscope_paged`:

    ```python
    model.set_attn_implementation("kvscope_paged")
    with PagedCache.open(client, model, input_ids, session="chat-42", room=256) as cache:
        reply = model.generate(**cache.generate_inputs, max_new_tokens=256)
    ```

    Passes of up to 8 tokens are computed by `kvscope::paged_decode` from the pages, longer ones by SDPA; `calls` counts
    what the kernel computed and what, without triton or a GPU, its reference did. Window layers keep all their pages.
    """

    batch: PagedBatch

    @classmethod
    def open(
        cls,
        client: SyncClient,
        model: Any,
        input_ids: torch.Tensor,
        *,
        attention_mask: torch.Tensor | None = None,
        pool: DevicePool | None = None,
        room: int = ROOM,
        **options: Any,
    ) -> PagedCache:
        """As `StoreCache.open`, whose `options` these are. The KV goes into `pool`, which several caches may share, or
        into one of its own with `room` tokens for each row behind `input_ids`.

        Raises `BadRequest` for a model with another attention implementation, a layout that the kernel does not take, a
        pool that is not the model's or a `room` that the device has not; `PoolExhausted` where there is no room.
        """
        layout = client.layout
        _require(model, layout)
        require_ids(input_ids)
        rows, tokens = input_ids.shape
        pads = pads_of(attention_mask, (rows, tokens))
        own = pool is None
        if pool is None:
            pool = _own_pool(layout, rows, tokens, whole_number("room", room), input_ids.device)
        _require_pool(pool, layout, input_ids.device)
        batch = PagedBatch(pool, pads, windows_of(model))
        try:
            layers = [PagedLayer(batch, number) for number in range(len(batch.windows))]
            cache = super().open(client, model, input_ids, attention_mask=attention_mask, layers=layers, **options)
        except BaseException:
            batch.close()
            raise
        assert isinstance(cache, PagedCache)
        cache._begin(batch, f"open the cache with more room than {room}" if own else "give it a larger pool")
        return cache

    def _begin(self, batch: PagedBatch, advice: str) -> None:
        self.batch = batch
        self._advice = advice
        mine = weakref.ref(batch)

        def ended(*_: Any) -> None:
            there = mine()
            if there is not None:
                leave(there)

        # Also after a pass that failed: another cache's would be taken for it.
        self._left = self._model.register_forward_hook(ended, always_call=True)
        weakref.finalize(self, self._left.remove)
        # A cache that was not closed must not keep pages of a pool that others share.
        weakref.finalize(self, batch.drop).atexit = False

    def before_forward(self, given: Mapping[str, Any]) -> None:
        super().before_forward(given)
        try:
            self.batch.begin(given["input_ids"].shape[1])
        except PoolExhausted as full:
            self._step_ids = None
            raise PoolExhausted(f"{full}: {self._advice}") from None
        enter(self.batch)

    def after_forward(self) -> None:
        leave(self.batch)
        if self.batch.decoding and self.batch.attended != len(self.layers):
            raise BadRequest(
                f"{len(self.layers) - self.batch.attended} layers of this model did not attend through transformers' "
                f"registry: {NAME} cannot serve it"
            )
        super().after_forward()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._left.remove()
            self.batch.close()


def _own_pool(layout: Layout, rows: int, tokens: int, room: int, device: torch.device) -> DevicePool:
    try:
        return pool_for(layout, rows=rows, tokens=tokens + room, device=device)
    except BadRequest as error:
        raise BadRequest(f"room {room}: {error}") from None


def _require(model: Any, layout: Layout) -> None:
    used = text_config(model)._attn_implementation
    if used != NAME:
        raise BadRequest(f"the model's attention is {used!r}: model.set_attn_implementation({NAME!r}) first")
    if layout.block_tokens not in BLOCK_TOKENS or layout.head_dim > HEAD_DIMS[1]:
        raise BadRequest(
            f"blocks of {layout.block_tokens} tokens with head_dim {layout.head_dim}: paged attention takes blocks of "
            f"{', '.join(map(str, BLOCK_TOKENS))} and head_dim up to {HEAD_DIMS[1]}"
        )


def _require_pool(pool: DevicePool, layout: Layout, device: torch.device) -> None:
    for name, ours, theirs in (
        ("layers", layout.layers, pool.layout.layers),
        ("KV heads", layout.head_groups * layout.heads, pool.layout.head_groups * pool.layout.heads),
        ("head_dim", layout.head_dim, pool.layout.head_dim),
        ("dtype", layout.dtype, pool.layout.dtype),
        ("device", device.type, pool.kv.device.type),
    ):
        if ours != theirs:
            raise BadRequest(f"the pool's {name} {theirs} is not the store's and the prompt's {ours}")
    if pool.layout.block_tokens not in BLOCK_TOKENS:
        raise BadRequest(f"a pool of blocks of {pool.layout.block_tokens} tokens cannot be attended to")
