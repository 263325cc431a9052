"""A cache layer of transformers 5 whose KV lies in the pages of a device pool."""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

from typing import Any

import torch

from kvstore.errors import BadRequest
from kvstore.integrations.transformers.layers import StoreLayer
from kvstore.integrations.transformers.paged_batch import PagedBatch


class PagedLayer(StoreLayer):
    """Layer `number` of `batch`. What a step added waits for the store as in a `StoreLayer`; `keys` and `values` stay
    None: attention finds them in the pages, or gathers what a prompt's next part looks back at."""

    def __init__(self, batch: PagedBatch, number: int) -> None:
        super().__init__(batch.windows[number])
        self._batch = batch
        self._number = number
        self._first = 0
        """The first column whose KV is in the pages (a window's earlier ones were not taken from the store)."""

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.device = key_states.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append `[batch, heads, new, head_dim]`. What a prompt may look at comes back; of a decode step only the new
        states, since its attention reads the pages."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new, past = key_states.shape[-2], self.length
        seen, _ = self.get_mask_sizes(new)
        self._batch.write(self._number, key_states, value_states)
        self._fresh.append((key_states, value_states))
        self.length += new
        if self._batch.decoding or seen == new:
            return key_states, value_states
        keys, values = self._batch.states(self._number, past, seen - new)
        return torch.cat([keys, key_states], dim=-2), torch.cat([values, value_states], dim=-2)

    def crop(self, tokens_to_remove: int) -> None:
        if not self.is_initialized:
            return
        left = self.left_after(tokens_to_remove)
        needed = 0 if self.window is None else max(0, left - self.window + 1)
        if left and needed < self._first:
            raise BadRequest(f"cannot take {self.length - left} tokens back: what was before them has left the window")
        self.length = left
        self._batch.truncate(left)

    def reset(self) -> None:
        super().reset()
        self._first = 0
        self._batch.truncate(0)

    def fill(self, keys: torch.Tensor, values: torch.Tensor, length: int) -> None:
        """Begin with `length` columns, of which `keys` and `values` `[batch, heads, kept, head_dim]` are the last."""
        self.lazy_initialization(keys, values)
        if self._batch.length != length:
            self._batch.begin(length)
        self._batch.write(self._number, keys, values)
        self.length = length
        self._first = length - keys.shape[2]

    def last(self, row: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        if self.length - tokens < self._first:
            return None
        keys, values = self._batch.states(self._number, self.length, tokens)
        return keys[row], values[row]
