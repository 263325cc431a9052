"""`kvstore.table.BlockTable` over tensors: for who knows the slots on the host, and wants one upload a step."""

from __future__ import annotations

import torch
from torch import Tensor

from kvstore.device.crossing import Crossing
from kvstore.kernels.tables import block_table_update
from kvstore.table import Table

_UPDATE = "block_table.update"


class TorchDevice:
    """A `kvstore.table.Device`: `BlockTable(rows, columns, block_tokens, device=TorchDevice(Crossing("cuda")))`."""

    def __init__(self, crossing: Crossing) -> None:
        self._crossing = crossing

    def full(self, rows: int, columns: int, value: int) -> Tensor:
        return torch.full((rows, columns), value, dtype=torch.int32, device=self._crossing.device)

    def upload(self, host: Table) -> Tensor:
        (there,) = self._crossing.send(_UPDATE, host)
        return there.reshape(host.shape)

    def scatter(self, table: Tensor, cells: Tensor, values: Tensor) -> None:
        block_table_update(table.view(1, -1), torch.zeros_like(cells), cells, values)
