"""A left-padded batch whose KV lies in the pages of a device pool: one row of the block table for each of its rows.

Padding is in no page: token `t` of row `r` is column `t + pads[r]` of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kvstore.device import DevicePool, Step
from kvstore.errors import BadRequest, PoolExhausted
from kvstore.kernels.append import append
from kvstore.kernels.decode import paged_decode
from kvstore.kernels.decode.pages import MOST_QUERIES

Places = tuple[torch.Tensor | None, torch.Tensor]
"""Which of a step's states, flat over batch and columns, are tokens' (None: all), and their slots."""


class PagedBatch:
    """Rows of `pool`, held until `close`. Each pass begins with `begin`, which makes room for its tokens.

    `windows`: of each layer, in tokens, None for full attention; pages before a window stay until `close`.
    `begin` and `fill` raise `PoolExhausted` where the pool or its table has no room, before anything has changed.
    """

    def __init__(self, pool: DevicePool, pads: Sequence[int], windows: Sequence[int | None]) -> None:
        self.pool = pool
        self.pads = list(pads)
        self.windows = list(windows)
        self.length = 0
        """Columns that there is room for, padding included."""
        self.decoding = False
        """The pass is computed from the pages: it has no more tokens than the kernel takes."""
        self.attended = 0
        """Layers that the pass has computed so."""
        self._rows: list[int] = []
        self._step: Step | None = None
        self._past = 0
        self._tables: torch.Tensor | None = None
        self._places: dict[int, Places] = {}
        try:
            for _ in self.pads:
                self._rows.append(pool.open())
        except PoolExhausted:
            self.close()
            raise

    def close(self) -> None:
        """The blocks are free, the rows somebody else's. May be called twice."""
        rows, self._rows = self._rows, []
        self.pool.close(*rows)

    def drop(self) -> None:
        """As `close`, from a finalizer: the pool takes them back with its next call."""
        rows, self._rows = self._rows, []
        self.pool.drop(*rows)

    # --- a forward pass ---------------------------------------------------------------------------------------------

    def begin(self, new: int) -> None:
        """A pass adds `new` columns: blocks, table and slots for their tokens, in one upload."""
        past = self.length
        counts = [self._tokens(past + new, pad) - self._tokens(past, pad) for pad in self.pads]
        self._step = self.pool.extend(self._rows, counts)
        self._past, self.length = past, past + new
        self._tables = None
        self._places.clear()
        self.decoding = new <= MOST_QUERIES
        self.attended = 0

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """K and V `[batch, KV heads, kept, head_dim]` of the pass's last `kept` columns into a layer's pages."""
        kept = keys.shape[2]
        if kept not in self._places:
            self._places[kept] = self._places_of(kept)
        real, slots = self._places[kept]
        flat = [states.transpose(1, 2).flatten(0, 1) for states in (keys, values)]
        if real is not None:
            flat = [states.index_select(0, real) for states in flat]
        heads = self.pool.layout.heads
        for group in range(self.pool.layout.head_groups):
            k, v = (states[:, group * heads : (group + 1) * heads] for states in flat)
            append(k, v, self.pool.cache(layer, group), slots, None, None)

    def attend(self, layer: int, query: torch.Tensor, scale: float, softcap: float = 0.0) -> torch.Tensor:
        """`query` `[batch, new, heads, head_dim]` over the layer's pages, the pass's own tokens among them: as many."""
        step = self._begun()
        if self._tables is None:
            most = max(1, -(-self.length // self.pool.layout.block_tokens))
            self._tables = self.pool.table.index_select(0, step.rows)[:, :most]
        self.attended += 1
        outs = []
        for group, part in enumerate(query.chunk(self.pool.layout.head_groups, 2)):
            cache = self.pool.cache(layer, group)
            keys, values = cache[:, 0].transpose(1, 2), cache[:, 1].transpose(1, 2)
            window = self.windows[layer] or 0
            outs.append(paged_decode(part, keys, values, self._tables, step.lengths, scale, window, softcap))
        return outs[0] if len(outs) == 1 else torch.cat(outs, 2)

    # --- outside of one ---------------------------------------------------------------------------------------------

    def states(self, layer: int, end: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V `[batch, KV heads, count, head_dim]` of the columns before `end`, gathered; padding is 0."""
        size, device = self.pool.layout.block_tokens, self.pool.kv.device
        tokens = np.arange(end - count, end) - np.array(self.pads)[:, None]
        hidden = torch.from_numpy(tokens < 0).to(device)
        at = torch.from_numpy(np.maximum(tokens, 0)).to(device)
        rows = torch.tensor(self._rows, device=device)
        blocks = self.pool.table[rows].gather(1, at // size).clamp_(min=0).long()
        parts = []
        for group in range(self.pool.layout.head_groups):
            cache = self.pool.cache(layer, group).permute(0, 3, 1, 2, 4)  # [blocks, block_tokens, 2, heads, head_dim]
            parts.append(cache[blocks, at % size])
        both = torch.cat(parts, 3).masked_fill_(hidden[:, :, None, None, None], 0.0)
        return both[:, :, 0].transpose(1, 2), both[:, :, 1].transpose(1, 2)

    def truncate(self, length: int) -> None:
        """Keep the first `length` columns."""
        if length < self.length:
            for row, pad in zip(self._rows, self.pads, strict=True):
                self.pool.truncate(row, self._tokens(length, pad))
            self.length = length

    def _places_of(self, kept: int) -> Places:
        slots, new = self._begun().slots, self.length - self._past
        if kept == new and len(slots) == new * len(self.pads):
            return None, slots
        real, chosen, before = [], [], 0
        for row, pad in enumerate(self.pads):
            first = min(max(0, pad - self._past), new)
            columns = np.arange(max(first, new - kept), new)
            real.append(row * kept + columns - (new - kept))
            chosen.append(before + columns - first)
            before += new - first
        device = slots.device
        there = [torch.from_numpy(np.concatenate(places)).to(device) for places in (real, chosen)]
        return there[0], slots.index_select(0, there[1])

    def _begun(self) -> Step:
        if self._step is None:
            raise BadRequest("no forward pass has begun: call the model that this cache was opened for")
        return self._step

    @staticmethod
    def _tokens(columns: int, pad: int) -> int:
        return max(0, columns - pad)
