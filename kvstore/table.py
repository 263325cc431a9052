"""The block table: which slot holds the next tokens of which sequence, kept where the kernels read it.

Rows are sequences, columns their blocks in order. The host keeps a mirror and stages what changes; `commit` sends it
all in one upload a step and scatters it on the device, because many small uploads stall a decode step as surely as
reading device state back does (`block-table-upload`). Nothing here ever reads the device: lengths and CSR come from the
mirror.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvstore.errors import BadRequest, PoolExhausted

Table = npt.NDArray[np.int32]
EMPTY = -1
"""A cell without a block: no kernel may take it for slot 0."""


class Device(Protocol):
    """Where the table lives. Arrays that it returns are its own (NumPy here, a tensor on a GPU)."""

    def full(self, rows: int, columns: int, value: int) -> Any:
        """A new int32 table filled with `value`."""

    def upload(self, host: Table) -> Any:
        """A device copy of `host`: one transfer, whatever its shape."""

    def scatter(self, table: Any, cells: Any, values: Any) -> None:
        """`table.flat[cells] = values`; `cells` are distinct."""


class HostDevice:
    """The host as a device: what the tests and a CPU use."""

    def full(self, rows: int, columns: int, value: int) -> Table:
        return np.full((rows, columns), value, np.int32)

    def upload(self, host: Table) -> Table:
        return host.copy()

    def scatter(self, table: Table, cells: Table, values: Table) -> None:
        table.reshape(-1)[cells] = values


class Csr(NamedTuple):
    """FlashInfer's page table of a batch, int32: pages of sequence i are `indices[indptr[i]:indptr[i + 1]]`, and its
    last page holds `last_page_len[i]` tokens (1 … block_tokens; 0 for an empty sequence).

    Source: the arguments of FlashInfer's paged prefill and decode wrappers (`paged_kv_indptr`, `…_indices`,
    `…_last_page_len`).
    """

    indptr: Any
    indices: Any
    last_page_len: Any


@dataclass(slots=True)
class Traffic:
    """What the table sent to the device."""

    uploads: int = 0
    bytes: int = 0
    cells: int = 0


class BlockTable:
    """`rows` sequences of at most `columns` blocks. `device_table` changes with `commit` only.

    `batched=False` uploads at every change: the fault, to be measured against. Raises `BadRequest` for a row, a block
    or a length that cannot be, `PoolExhausted` when no row or column is left.
    """

    def __init__(
        self, rows: int, columns: int, block_tokens: int, *, device: Device | None = None, batched: bool = True
    ) -> None:
        if min(rows, columns, block_tokens) < 1 or rows * columns > np.iinfo(np.int32).max:
            raise BadRequest(f"a block table of {rows} × {columns} blocks of {block_tokens} tokens cannot be")
        self.block_tokens = block_tokens
        self.batched = batched
        self.traffic = Traffic()
        self._device: Device = device or HostDevice()
        self._mirror: Table = np.full((rows, columns), EMPTY, np.int32)
        self._blocks = np.zeros(rows, np.int64)
        self._tokens = np.zeros(rows, np.int64)
        self._open = np.zeros(rows, np.bool_)
        self._changed: list[npt.NDArray[np.int64]] = []
        self.device_table = self._device.full(rows, columns, EMPTY)

    # --- sequences --------------------------------------------------------------------------------------------------

    def open(self) -> int:
        """A row for a new sequence."""
        row = int(np.argmin(self._open))
        if self._open[row]:
            raise PoolExhausted(f"all {len(self._open)} rows of the block table are taken")
        self._open[row] = True
        return row

    def close(self, row: int) -> None:
        """The sequence ended: its cells empty, its row may be given to another."""
        self.truncate(row, 0)
        self._open[row] = False

    def append(self, row: int, slots: npt.ArrayLike, tokens: int) -> None:
        """`slots` `[m]` follow the row's blocks, and the sequence has `tokens` more, which must fit into its blocks."""
        self._require(row)
        new = np.asarray(slots, np.int64).reshape(-1)
        first = int(self._blocks[row])
        last, length = first + len(new), int(self._tokens[row]) + tokens
        if last > self._mirror.shape[1]:
            raise PoolExhausted(f"{last} blocks asked, a row of the block table has {self._mirror.shape[1]}")
        if len(new) and (int(new.min()) < 0 or int(new.max()) > np.iinfo(np.int32).max):
            raise BadRequest("slots must be non-negative 32-bit integers")
        if tokens < 0 or -(-length // self.block_tokens) != last:
            raise BadRequest(f"{length} tokens do not fill {last} blocks of {self.block_tokens} up to the last one")
        self._mirror[row, first:last] = new
        self._blocks[row], self._tokens[row] = last, length
        self._stage(row, np.arange(first, last))

    def replace_last(self, row: int, slot: int) -> None:
        """The last block has a new version in another slot (an append to a tail)."""
        self._require(row)
        column = int(self._blocks[row]) - 1
        if column < 0 or slot < 0:
            raise BadRequest(f"row {row} has {column + 1} blocks, the new slot is {slot}")
        self._mirror[row, column] = slot
        self._stage(row, np.asarray([column]))

    def truncate(self, row: int, tokens: int) -> None:
        """Keep the first `tokens` tokens (a rejected draft, an edited history)."""
        self._require(row)
        if not 0 <= tokens <= self._tokens[row]:
            raise BadRequest(f"row {row} has {self._tokens[row]} tokens, {tokens} cannot be kept")
        keep, had = -(-tokens // self.block_tokens), int(self._blocks[row])
        self._mirror[row, keep:had] = EMPTY
        self._blocks[row], self._tokens[row] = keep, tokens
        self._stage(row, np.arange(keep, had))

    def tokens(self, row: int) -> int:
        return int(self._tokens[row])

    # --- the device -------------------------------------------------------------------------------------------------

    def commit(self) -> int:
        """Bring the device's table up to date: one upload of `[2, cells]` int32, or none. Bytes sent."""
        if not self._changed:
            return 0
        # A scatter with repeated cells has no order on a GPU: every cell once, with what it holds now.
        cells = np.unique(np.concatenate(self._changed))
        self._changed.clear()
        packed = np.empty((2, len(cells)), np.int32)
        packed[0], packed[1] = cells, self._mirror.reshape(-1)[cells]
        there = self._upload(packed)
        self._device.scatter(self.device_table, there[0], there[1])
        self.traffic.cells += len(cells)
        return packed.nbytes

    def csr(self, rows: npt.ArrayLike) -> Csr:
        """The page table of a batch `rows` `[b]` in one upload; independent of `commit`."""
        batch = np.asarray(rows, np.int64).reshape(-1)
        for row in batch.tolist():
            self._require(row)
        counts, tokens = self._blocks[batch], self._tokens[batch]
        taken = np.arange(self._mirror.shape[1]) < counts[:, None]
        total, size = int(counts.sum()), len(batch)
        packed = np.empty(size + 1 + total + size, np.int32)
        packed[0] = 0
        packed[1 : size + 1] = np.cumsum(counts)
        packed[size + 1 : size + 1 + total] = self._mirror[batch][taken]
        packed[size + 1 + total :] = np.where(counts > 0, tokens - (counts - 1) * self.block_tokens, 0)
        there = self._upload(packed)
        return Csr(there[: size + 1], there[size + 1 : size + 1 + total], there[size + 1 + total :])

    def _upload(self, host: Table) -> Any:
        self.traffic.uploads += 1
        self.traffic.bytes += host.nbytes
        return self._device.upload(host)

    def _stage(self, row: int, columns: npt.NDArray[np.int64]) -> None:
        if len(columns):
            self._changed.append(row * self._mirror.shape[1] + columns)
            if not self.batched:
                self.commit()

    def _require(self, row: int) -> None:
        if not 0 <= row < len(self._open) or not self._open[row]:
            raise BadRequest(f"row {row} of the block table is not open")
