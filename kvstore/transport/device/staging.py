"""A client's staging arena on its device: filled there by kernels, pulled from there by shards."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvstore.header import Bytes
from kvstore.layout import Layout
from kvstore.staging import Room, Staged
from kvstore.transport.device.memory import Device, DeviceMemory
from kvstore.transport.device.rows import DeviceRows

Slots = npt.NDArray[np.int64]


class DeviceStaged(Staged):
    """A run of a device staging arena: fill `rows` there, then put it, as any `Staged`."""

    __slots__ = ("rows",)

    def __init__(self, home: DeviceStaging, slots: Slots, rows: DeviceRows) -> None:
        super().__init__(home, slots)
        self.rows = rows


class DeviceStaging(Room):
    """`blocks` slots on `device`, numbered from `first` on."""

    def __init__(self, device: Device, layout: Layout, blocks: int, *, first: int) -> None:
        super().__init__(blocks, first)
        self.device = device
        self.memory: DeviceMemory = device.allocate(blocks * layout.block_bytes)
        self._block_bytes = layout.block_bytes

    def rows(self, slots: Slots) -> DeviceRows:
        """A run, as memory of the device."""
        address = self.memory.address + (int(slots[0]) - self._first) * self._block_bytes
        return DeviceRows(self.device, address, len(slots), self._block_bytes)

    def data_of(self, slots: Slots) -> Bytes:
        """What lies there now, copied off the device once whatever this process still writes there is done."""
        self.device.quiesce()
        return self.rows(slots).download()

    def close(self) -> None:
        self.memory.close()

    def _staged(self, slots: Slots) -> Staged:
        return DeviceStaged(self, slots, self.rows(slots))
