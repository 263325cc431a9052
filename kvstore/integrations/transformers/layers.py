"""Cache layers of transformers 5 that keep what attention needs here, and what a step added for the store."""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from kvstore.errors import BadRequest


class StoreLayer(CacheLayerMixin):
    """K and V of one layer, `[batch, heads, tokens, head_dim]`, of full attention or of a sliding window.

    With a `window` (in tokens, the query's own among them, as `config.sliding_window` counts) only the last
    `window - 1` tokens stay, and attention sees what transformers' own sliding layer would show it. What the steps
    since the last `take_fresh` added waits there for the store, the window or not.
    """

    is_croppable = True

    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        self.window = window
        self.is_sliding = window is not None
        self.record_past = False
        self.length = 0
        self._fresh: list[tuple[torch.Tensor, torch.Tensor]] = []

    # --- what attention calls ------------------------------------------------------------------------------------

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """An empty layer of the dtype, device and shape of these states."""
        self.device = key_states.device
        self.keys = key_states[:, :, :0]
        self.values = value_states[:, :, :0]
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append `[batch, heads, new, head_dim]`; what the new queries may look at (the mask hides the rest)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        seen, _ = self.get_mask_sizes(key_states.shape[-2])
        self._fresh.append((key_states, value_states))
        self.length += key_states.shape[-2]
        keys = torch.cat([self.keys, key_states], dim=-2)
        values = torch.cat([self.values, value_states], dim=-2)
        self.keys, self.values = (keys, values) if self.record_past else (self._kept(keys), self._kept(values))
        return keys[:, :, keys.shape[-2] - seen :], values[:, :, values.shape[-2] - seen :]

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """How many tokens a step of that many sees, and the position of the first of them."""
        # Early 5.x handed over the positions themselves.
        new = query_length if isinstance(query_length, int) else int(query_length.shape[0])
        past = self.length if self.window is None else min(self.length, self.window - 1)
        return past + new, self.length - past

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1 if self.window is None else self.window

    def get_max_cache_shape(self) -> int:
        """The former name of `get_max_length`."""
        return self.get_max_length()

    def activate_past_recording(self) -> None:
        """From now on a window keeps everything until the next `crop`, which may then go back."""
        self.record_past = True

    def crop(self, tokens_to_remove: int) -> None:
        """Take the last `-tokens_to_remove` tokens away again; as in early 5.x, a number above 0 is how many stay."""
        if not self.is_initialized:
            return
        left = self.left_after(tokens_to_remove)
        have = self.keys.shape[-2] - (self.length - left)
        if have < min(left, left if self.window is None else self.window - 1):
            raise BadRequest(f"cannot take {self.length - left} tokens back: what was before them has left the window")
        self.length = left
        self.keys, self.values = self._kept(self.keys[:, :, :have]), self._kept(self.values[:, :, :have])

    def left_after(self, tokens_to_remove: int) -> int:
        """The tokens that a `crop` leaves. Raises `BadRequest` where there are not so many to take back."""
        left = self.length + tokens_to_remove if tokens_to_remove <= 0 else min(tokens_to_remove, self.length)
        if left < 0:
            raise BadRequest(f"cannot take {-tokens_to_remove} tokens back: the cache has {self.length}")
        return left

    def reset(self) -> None:
        self.keys = self.values = None
        self.is_initialized = False
        self.length = 0
        self._fresh.clear()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        raise BadRequest("beam search is not supported: a row of StoreCache is one session's history")

    def batch_repeat_interleave(self, repeats: int) -> None:
        raise BadRequest("several sequences from one prompt are not supported: give the batch its rows beforehand")

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        raise BadRequest("rows cannot be taken out of a StoreCache: open one for the rows that are left")

    # --- what the store's side calls --------------------------------------------------------------------------------

    def fill(self, keys: torch.Tensor, values: torch.Tensor, length: int) -> None:
        """Begin with `length` tokens, of which `keys` and `values` hold the last ones (all, without a window)."""
        self.lazy_initialization(keys, values)
        self.keys, self.values, self.length = keys, values, length

    def last(self, row: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """K and V `[heads, tokens, head_dim]` of a row's last tokens; None where the window no longer has them."""
        if self.keys is None or self.keys.shape[-2] < tokens:
            return None
        first = self.keys.shape[-2] - tokens
        return self.keys[row, :, first:], self.values[row, :, first:]

    def take_fresh(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """K and V that came since the last call, `[batch, heads, new, head_dim]` each."""
        fresh, self._fresh = self._fresh, []
        if not fresh:
            return None
        if len(fresh) == 1:
            return fresh[0]
        return torch.cat([keys for keys, _ in fresh], -2), torch.cat([values for _, values in fresh], -2)

    def _kept(self, states: torch.Tensor) -> torch.Tensor:
        return states if self.window is None else states[:, :, max(0, states.shape[-2] - self.window + 1) :]
