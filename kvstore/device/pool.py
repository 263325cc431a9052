"""A pool on a device: KV, bitmap and block tables beside each other, grown without ever asking the device.

The host keeps lengths, from which it knows how many blocks there are and where they go in the tables; which blocks
those are only the device knows. A step is one upload and a few launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from kvstore.device.crossing import Crossing
from kvstore.device.plan import Plan, plan
from kvstore.device.slots import DeviceSlots, NaiveSlots, PackedSlots
from kvstore.errors import BadRequest, PoolExhausted
from kvstore.kernels.append import append
from kvstore.kernels.tables import block_table_update, page_table, token_slots
from kvstore.layout import Layout
from kvstore.meters import Meters
from kvstore.table import EMPTY, Csr

_UPDATE, _READ = "block_table.update", "block_table.read"
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
        if min(blocks, rows, columns) < 1 or rows * columns > np.iinfo(np.int32).max:
            raise BadRequest(f"a pool of {blocks} blocks with a table of {rows} × {columns} cannot be")
        if bitmap not in ("packed", "naive") or table not in ("batched", "upload"):
            raise BadRequest(f"bitmap is packed or naive, table batched or upload: not {bitmap!r} and {table!r}")
        self.layout = layout
        self.blocks = blocks
        self.crossing = crossing or Crossing(device, meters)
        where = self.crossing.device
        shape = (layout.layers * layout.head_groups, blocks, *layout.block_shape)
        # Not `empty`: what a masked kernel multiplies by zero must not be a NaN that somebody left there.
        self.kv = torch.zeros(shape, dtype=torch_dtype(layout), device=where)
        self.table = torch.full((rows, columns), EMPTY, dtype=torch.int32, device=where)
        self.lengths = torch.zeros(rows, dtype=torch.int32, device=where)
        self.slots: DeviceSlots = (PackedSlots if bitmap == "packed" else NaiveSlots)(blocks, self.crossing)
        self.free = blocks
        self._batched = table == "batched"
        self._tokens = np.zeros(rows, np.int64)
        self._open = np.zeros(rows, np.bool_)

    # --- sequences --------------------------------------------------------------------------------------------------

    def open(self) -> int:
        """A row for a new sequence."""
        row = int(np.argmin(self._open))
        if self._open[row]:
            raise PoolExhausted(f"all {len(self._open)} rows of the block table are taken")
        self._open[row] = True
        return row

    def close(self, *rows: int) -> None:
        """The sequences ended: their blocks are free, their rows may be given to others."""
        self._require(rows)
        held = self._held(rows)
        if held:
            (there,) = self.crossing.send(_UPDATE, rows)
            index = there.long()
            self.slots.release(self.table.index_select(0, index))
            self.table.index_fill_(0, index, EMPTY)
            self.lengths.index_fill_(0, index, 0)
        self.free += held
        self._tokens[list(rows)] = 0
        self._open[list(rows)] = False

    def tokens(self, row: int) -> int:
        """Tokens of a row, by the host's own count."""
        self._require([row])
        return int(self._tokens[row])

    def extend(self, rows: Sequence[int], tokens: Sequence[int]) -> Step:
        """Room for `tokens[i]` more tokens of each of `rows`: blocks, table, lengths, and the slots of the tokens."""
        self._require(rows)
        step = plan(rows, tokens, self._tokens, columns=self.table.shape[1], block_tokens=self.layout.block_tokens)
        needed = int(step.counts.sum())
        if needed > self.free:
            raise PoolExhausted(f"{needed} blocks asked, {self.free} are free")
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
        self.free -= needed
        self._tokens[step.rows] = step.lengths
        return Step(there, lengths, offsets, slots)

    def truncate(self, row: int, tokens: int) -> None:
        """Keep the first `tokens` tokens of `row` (a rejected draft); blocks behind them are free."""
        self._require([row])
        had = int(self._tokens[row])
        if not 0 <= tokens <= had:
            raise BadRequest(f"row {row} has {had} tokens, {tokens} cannot be kept")
        first, last = (-(-n // self.layout.block_tokens) for n in (tokens, had))
        if last > first:
            behind = self.table[row, first:last]
            self.slots.release(behind)
            behind.fill_(EMPTY)
        self.lengths[row].fill_(tokens)
        self.free += last - first
        self._tokens[row] = tokens

    # --- data -------------------------------------------------------------------------------------------------------

    def cache(self, layer: int, group: int = 0) -> Tensor:
        """`[blocks, 2, heads, block_tokens, head_dim]` of one layer and head group."""
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

    def free_blocks(self) -> int:
        """Free blocks by the device's own count: a read of the device. `free` is the host's, and costs nothing."""
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
        if len(set(rows)) != len(rows):
            raise BadRequest(f"a row of the block table is named twice: {list(rows)}")
        for row in rows:
            if not 0 <= row < len(self._open) or not self._open[row]:
                raise BadRequest(f"row {row} of the block table is not open")
