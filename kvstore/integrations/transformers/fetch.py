"""From the store into the layers: the blocks that a match found, as tensors, and each row's partial block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from kvstore.client import SyncClient
from kvstore.header import Bytes
from kvstore.integrations.transformers.layers import StoreLayer
from kvstore.integrations.transformers.match import Found, Reach
from kvstore.layout import Layout

_AT_ONCE_BYTES = 64 << 20
"""A get's buffer: bounded, so that a long context does not lie in memory twice."""

Rows = npt.NDArray[np.int64]


class MissingBlocksError(Exception):
    """Blocks that a match had found could not be read: they are marked as not there now, and it may be tried again."""


@dataclass(slots=True)
class Fetched:
    """`keys`, `values`: one tensor a layer, `[batch, KV heads, kept, head_dim]`; `partials`: one a row, or None."""

    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    partials: list[Bytes | None] = field(default_factory=list)
    blocks: int = 0


class Fetcher:
    """Reads `columns` positions of a left-padded batch."""

    def __init__(self, client: SyncClient, layout: Layout, reach: Reach, layers: Sequence[StoreLayer]) -> None:
        self._client = client
        self._layout = layout
        self._reach = reach
        self._layers = layers

    def fetch(self, rows: Sequence[Found | None], pads: Sequence[int], columns: int, dtype: torch.dtype) -> Fetched:
        """Raises `MissingBlocksError`, or a `StoreError`. Rows that have no tokens within `columns` may be None."""
        layout = self._layout
        heads = layout.head_groups * layout.heads
        done = Fetched()
        for layer in self._layers:
            kept = columns if layer.window is None else min(columns, layer.window - 1)
            shape = (len(rows), heads, kept, layout.head_dim)
            done.keys.append(torch.zeros(shape, dtype=dtype))
            done.values.append(torch.zeros(shape, dtype=dtype))
        for row, (found, pad) in enumerate(zip(rows, pads, strict=True)):
            tokens = max(0, columns - pad)
            done.partials.append(self._fetch_row(done, row, found, tokens) if found is not None and tokens else None)
        return done

    def _fetch_row(self, done: Fetched, row: int, found: Found, tokens: int) -> Bytes | None:
        layout, size = self._layout, self._layout.block_tokens
        tail = self._tail(done, found, tokens)
        partial = np.zeros((layout.layers, layout.head_groups, layout.block_bytes), np.uint8)
        for layers, first, data in self._blocks(done, found, tokens):
            for number, start, blocks in zip(layers, first, data, strict=True):
                if tail is not None:
                    blocks = np.concatenate([blocks, tail[number][:, None]], axis=1)
                self._enter(done, row, number, blocks, start * size, tokens)
                if tokens % size:
                    partial[number] = blocks[:, tokens // size - start]
        return partial if tokens % size else None

    def _tail(self, done: Fetched, found: Found, tokens: int) -> Bytes | None:
        """`[layers, head groups, block_bytes]` of the session's tail, if `tokens` reach into it."""
        whole = found.whole * self._layout.block_tokens
        if tokens <= whole or found.tail is None:
            return None
        blocks = self._client.get(found.tail, min_clock=found.tail.clock, min_valid=tokens - whole)
        done.blocks += len(blocks)
        if not blocks.found.all():
            found.agree = 0
            raise MissingBlocksError
        return np.ascontiguousarray(blocks.data).reshape(self._layout.layers, self._layout.head_groups, -1)

    def _blocks(self, done: Fetched, found: Found, tokens: int) -> Iterator[tuple[list[int], list[int], list[Bytes]]]:
        """Some layers at a time: numbers, first block of each, `[head groups, blocks, block_bytes]` of each."""
        layout = self._layout
        whole = len(found.digests)
        last = min(-(-tokens // layout.block_tokens), found.whole)
        first = self._reach.first_blocks(tokens)
        at_once = max(1, _AT_ONCE_BYTES // (layout.slot_bytes * layout.head_groups * max(1, last)))
        for begin in range(0, layout.layers, at_once):
            numbers = list(range(begin, min(begin + at_once, layout.layers)))
            wanted = [self._rows(number, first[number], last, whole) for number in numbers]
            data = self._get(done, found, np.concatenate(wanted), numbers)
            ends = np.cumsum([len(rows) for rows in wanted])[:-1]
            shaped = [
                part.reshape(layout.head_groups, -1, layout.block_bytes) for part in np.split(data, ends.tolist())
            ]
            yield numbers, [first[number] for number in numbers], shaped

    def _rows(self, layer: int, first: int, last: int, whole: int) -> Rows:
        """Rows of `found.blocks` of one layer's blocks `first` … `last - 1`, group by group."""
        groups = layer * self._layout.head_groups + np.arange(self._layout.head_groups)
        return np.asarray((groups[:, None] * whole + np.arange(first, last)).ravel(), np.int64)

    def _get(self, done: Fetched, found: Found, rows: Rows, layers: list[int]) -> Bytes:
        """The data of these rows: a view of the buffer that they were read into."""
        if not len(rows):
            return np.zeros((0, self._layout.block_bytes), np.uint8)
        blocks = self._client.get(found.blocks.rows(rows), min_valid=self._layout.block_tokens)
        done.blocks += len(blocks)
        good = blocks.found
        if not good.all():
            whole = len(found.digests)
            lost = rows[~good]
            found.there[lost // whole // self._layout.head_groups, lost % whole] = False
            found.count()
            raise MissingBlocksError
        data: Bytes = blocks.data
        return data

    def _enter(self, done: Fetched, row: int, layer: int, blocks: Bytes, start: int, tokens: int) -> None:
        """Blocks `[head groups, n, block_bytes]` that begin at token `start` into row `row` of a layer's tensors."""
        layout = self._layout
        groups, count, _ = blocks.shape
        head_bytes = layout.head_dim * layout.item_bytes
        split = blocks.reshape(groups, count, 2, layout.heads, layout.block_tokens, head_bytes)
        shape = (groups * layout.heads, count * layout.block_tokens, head_bytes)
        for side, tensor in enumerate((done.keys[layer], done.values[layer])):
            # [groups, n, heads, tokens of a block, head bytes] → [KV heads, tokens, head bytes]
            states = split[:, :, side].transpose(0, 2, 1, 3, 4).reshape(shape)
            room = tensor.shape[2]
            take = min(room, tokens - start)
            into = tensor[row].view(torch.uint8).numpy()
            into[:, room - take :] = states[:, tokens - start - take : tokens - start]
