"""A pool on a device: KV, bitmap and block tables beside each other, grown without ever asking the device.

The host keeps lengths, from which it knows how many blocks there are and where they go in the tables; which blocks
those are only the device knows. A step is one upload and a few launches.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from kvstore.arguments import counts, whole_number
from kvstore.device.crossing import Crossing, first_line
from kvstore.device.plan import Plan, plan
from kvstore.device.slots import DeviceSlots, NaiveSlots, PackedSlots
from kvstore.errors import BadRequest, PoolExhausted
from kvstore.kernels.append import append
from kvstore.kernels.tables import block_table_update, page_table, token_slots
from kvstore.layout import Layout
from kvstore.meters import Meters
from kvstore.table import EMPTY, Csr

_UPDATE, _READ = "block_table.update", "block_table.read"
_MOST = np.iinfo(np.int32).max
"""Blocks, cells of the table and tokens of a row are int32 on the device."""
_NAMES = {"float8_e4m3": "float8_e4m3fn"}


def torch_dtype(layout: Layout) -> torch.dtype:
    """The torch type of the layout's elements."""
    found: torch.dtype = getattr(torch, _NAMES.get(layout.dtype, layout.dtype))
    return found


@dataclass(frozen=True)
class Step:
    """A batch that was extended, on the device: `rows` and `lengths` `[b]` int32 (tokens, the new ones included),
    `offsets` `[b + 1]` int32 of each row's tokens in `slots` `[tokens]` int64, which `append` takes."""

    rows: Tensor
    lengths: Tensor
    offsets: Tensor
    slots: Tensor


class DevicePool:
    """`blocks` blocks of every layer and head group of `layout`, and block tables for `rows` sequences of at most
    `columns` blocks. Not for several threads; what it launches goes to the current stream.

    `kv` `[planes, blocks, 2, heads, block_tokens, head_dim]` (see `kvstore.kernels`): a plane is the store's own slot
    order, so that blocks go to staging, transports and other pools as they lie. `table` `[rows, columns]` and `lengths`
    `[rows]` are int32. A block is one row's. Raises `BadRequest` and `PoolExhausted`, before anything has changed.

    `bitmap="naive"` reads booleans back for each allocation, `table="upload"` sends each row's change by itself: the
    faults `bitmap-sync` and `block-table-upload`, to be measured against. `crossing`: another way to the device than
    `device` and `meters` say.
    """

    def __init__(
        self,
        layout: Layout,
        blocks: int,
        *,
        rows: int,
        columns: int,
        device: torch.device | str = "cuda",
        bitmap: Literal["packed", "naive"] = "packed",
        table: Literal["batched", "upload"] = "batched",
        meters: Meters | None = None,
        crossing: Crossing | None = None,
    ) -> None:
        blocks = whole_number("blocks", blocks, least=1, most=_MOST)
        rows, columns = whole_number("rows", rows, least=1), whole_number("columns", columns, least=1)
        if rows * columns > _MOST or columns * layout.block_tokens > _MOST:
            raise BadRequest(f"a table of {rows} × {columns} blocks of {layout.block_tokens} tokens cannot be")
        if bitmap not in ("packed", "naive") or table not in ("batched", "upload"):
            raise BadRequest(f"bitmap is packed or naive, table batched or upload: not {bitmap!r} and {table!r}")
        self.layout = layout
        self.blocks = blocks
        self.crossing = crossing or Crossing(device, meters)
        shape = (layout.layers * layout.head_groups, blocks, *layout.block_shape)
        try:
            # What is made within `torch.inference_mode` could not be changed outside of it.
            with torch.inference_mode(False):
                self._make(shape, rows, columns, PackedSlots if bitmap == "packed" else NaiveSlots)
        except (RuntimeError, MemoryError) as error:
            size = math.prod(shape) * layout.item_bytes / (1 << 20)
            raise BadRequest(
                f"{self.crossing.device}: {size:,.0f} MiB for {blocks} blocks and a table of {rows} × {columns} cannot "
                f"be had: {first_line(error)}"
            ) from None
        self._free = blocks
        self._batched = table == "batched"
        self._tokens = np.zeros(rows, np.int64)
        self._open = np.zeros(rows, np.bool_)
        self._dropped: deque[int] = deque()
        """Rows to be closed with the next call. What ends a row unasked, a finalizer, may run in the middle of one, and
        in any thread."""

    def _make(self, shape: tuple[int, ...], rows: int, columns: int, slots: type[PackedSlots | NaiveSlots]) -> None:
        where = self.crossing.device
        # Not `empty`: what a masked kernel multiplies by zero must not be a NaN that somebody left there.
        self.kv = torch.zeros(shape, dtype=torch_dtype(self.layout), device=where)
        self.table = torch.full((rows, columns), EMPTY, dtype=torch.int32, device=where)
        self.lengths = torch.zeros(rows, dtype=torch.int32, device=where)
        self.slots: DeviceSlots = slots(self.blocks, self.crossing)

    # --- sequences --------------------------------------------------------------------------------------------------

    def open(self) -> int:
        """A row for a new sequence."""
        self._reclaim()
        row = int(np.argmin(self._open))
        if self._open[row]:
            raise PoolExhausted(f"all {len(self._open)} rows of the block table are taken")
        self._open[row] = True
        return row

    def close(self, *rows: int) -> None:
        """The sequences ended: their blocks are free, their rows may be given to others."""
        self._reclaim()
        self._close(rows)

    def drop(self, *rows: int) -> None:
        """As `close`, for finalizers: at any moment, in any thread. It is done with the next call."""
        self._dropped.extend(rows)

    def _reclaim(self) -> None:
        while self._dropped:
            self._close([self._dropped.popleft()])

    def _close(self, rows: Sequence[int]) -> None:
        self._require(rows)
        held = self._held(rows)
        if held:
            (there,) = self.crossing.send(_UPDATE, rows)
            index = there.long()
            self.slots.release(self.table.index_select(0, index))
            self.table.index_fill_(0, index, EMPTY)
            self.lengths.index_fill_(0, index, 0)
        self._free += held
        self._tokens[list(rows)] = 0
        self._open[list(rows)] = False

    def tokens(self, row: int) -> int:
        """Tokens of a row, by the host's own count."""
        self._require([row])
        return int(self._tokens[row])

    def extend(self, rows: Sequence[int], tokens: Sequence[int]) -> Step:
        """Room for `tokens[i]` more tokens of each of `rows`: blocks, table, lengths, and the slots of the tokens."""
        self._reclaim()
        self._require(rows)
        step = plan(rows, tokens, self._tokens, columns=self.table.shape[1], block_tokens=self.layout.block_tokens)
        needed = int(step.counts.sum())
        if needed > self._free:
            raise PoolExhausted(f"{needed} blocks asked, {self._free} are free")
        there, firsts, offsets, lengths, growing, columns, counts = self.crossing.send(
            _UPDATE, step.rows, step.firsts, step.offsets, step.lengths,
            step.rows[step.growing], step.columns, step.counts,
        )  # fmt: skip
        if len(step.growing):
            blocks = self.slots.allocate(step.counts, counts)
            self._write(step, growing, columns, blocks)
        block_table_update(self.lengths[:, None], there, torch.zeros_like(there), lengths)
        slots = torch.empty(step.tokens, dtype=torch.int64, device=self.kv.device)
        block_tokens = self.layout.block_tokens
        token_slots(self.table, there, firsts, offsets, slots, self.blocks, block_tokens, step.most)
        self._free -= needed
        self._tokens[step.rows] = step.lengths
        return Step(there, lengths, offsets, slots)

    def truncate(self, row: int, tokens: int) -> None:
        """Keep the first `tokens` tokens of `row` (a rejected draft); blocks behind them are free."""
        self._reclaim()
        self._require([row])
        whole_number("tokens", tokens, least=-_MOST)
        had = int(self._tokens[row])
        if not 0 <= tokens <= had:
            raise BadRequest(f"row {row} has {had} tokens, {tokens} cannot be kept")
        first, last = (-(-n // self.layout.block_tokens) for n in (tokens, had))
        if last > first:
            behind = self.table[row, first:last]
            self.slots.release(behind)
            behind.fill_(EMPTY)
        self.lengths[row].fill_(tokens)
        self._free += last - first
        self._tokens[row] = tokens

    # --- data -------------------------------------------------------------------------------------------------------

    def cache(self, layer: int, group: int = 0) -> Tensor:
        """`[blocks, 2, heads, block_tokens, head_dim]` of one layer and head group."""
        if not (0 <= layer < self.layout.layers and 0 <= group < self.layout.head_groups):
            raise BadRequest(f"the pool has no head group {group} of a layer {layer}")
        return self.kv[layer * self.layout.head_groups + group]

    def append(
        self,
        layer: int,
        key: Tensor,
        value: Tensor,
        step: Step,
        *,
        group: int = 0,
        key_scale: Tensor | None = None,
        value_scale: Tensor | None = None,
    ) -> None:
        """The K and V `[tokens, heads, head_dim]` of a step's tokens go into one layer. Scales as in `append`."""
        append(key, value, self.cache(layer, group), step.slots, key_scale, value_scale)

    def csr(self, rows: Sequence[int]) -> Csr:
        """FlashInfer's page table of a batch, built on the device."""
        self._require(rows)
        pages = self._held(rows)
        (there,) = self.crossing.send(_UPDATE, rows)
        indptr, indices, last = (
            torch.empty(n, dtype=torch.int32, device=self.kv.device) for n in (len(rows) + 1, pages, len(rows))
        )
        page_table(self.table, self.lengths, there, indptr, indices, last, self.layout.block_tokens)
        return Csr(indptr, indices, last)

    # --- what the host asks -----------------------------------------------------------------------------------------

    def blocks_of(self, row: int) -> Tensor:
        """The blocks of `row`, on the host: a read of the device, for who must name them to a peer."""
        return self.crossing.read(_READ, self.table[row, : self._held([row])])

    @property
    def free(self) -> int:
        """Free blocks by the host's own count, which costs nothing."""
        self._reclaim()
        return self._free

    def free_blocks(self) -> int:
        """Free blocks by the device's own count: a read of the device."""
        self._reclaim()
        return self.slots.free()

    def faults(self) -> dict[str, int]:
        """What may never happen on the device, and did: a read of the device."""
        return self.slots.faults()

    def _write(self, step: Plan, rows: Tensor, columns: Tensor, blocks: Tensor) -> None:
        if self._batched:
            block_table_update(self.table, rows, columns, blocks)
            return
        for place, (row, column) in enumerate(
            zip(step.rows[step.growing].tolist(), step.columns.tolist(), strict=True)
        ):
            cell = self.crossing.send_alone(_UPDATE, [row, column])
            count = int(step.counts[place])
            block_table_update(self.table, cell[:1], cell[1:], blocks[place : place + 1, :count].contiguous())

    def _held(self, rows: Sequence[int]) -> int:
        """Blocks that `rows` hold, by the host's own count."""
        return int((-(-self._tokens[list(rows)] // self.layout.block_tokens)).sum())

    def _require(self, rows: Sequence[int]) -> None:
        named = counts("rows", rows, len(rows), least=-_MOST)
        if len(np.unique(named)) != len(named):
            raise BadRequest(f"a row of the block table is named twice: {named.tolist()}")
        for row in named.tolist():
            if not 0 <= row < len(self._open) or not self._open[row]:
                raise BadRequest(f"row {row} of the block table is not open")
