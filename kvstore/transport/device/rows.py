"""Blocks in a device's memory, as a client has them there."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np

from kvstore.errors import BadRequest
from kvstore.header import Bytes
from kvstore.transport.device.memory import Device
from kvstore.transport.device.moves import host_moves


class DeviceRows:
    """`n` blocks in a device's memory, packed. `address`: where; NumPy cannot see it, but whatever takes
    `__cuda_array_interface__` can: `torch.as_tensor(rows, device=…)` is `[n, block_bytes]` of bytes, the same memory.
    """

    def __init__(self, device: Device, address: int, n: int, block_bytes: int, keeper: object = None) -> None:
        """`keeper`: what the memory lives as long as."""
        self.device = device
        self.address = address
        self.block_bytes = block_bytes
        self._n = n
        self._keeper = keeper

    @classmethod
    def allocate(cls, device: Device, n: int, block_bytes: int) -> DeviceRows:
        """New memory; freed with the last that looks at it. Raises `BadRequest` where there is not so much."""
        memory = device.allocate(n * block_bytes)
        holder = _Holder()
        weakref.finalize(holder, memory.close).atexit = False
        return cls(device, memory.address, n, block_bytes, holder)

    @classmethod
    def of(cls, memory: Any, device: Device, block_bytes: int) -> DeviceRows:
        """`memory`, which is rows already or has `__cuda_array_interface__`. Raises `BadRequest` for what is not
        contiguous, not made of blocks, or read-only."""
        if isinstance(memory, DeviceRows):
            if memory.device is not device or memory.block_bytes != block_bytes:
                raise BadRequest(f"these rows are not of {device.name}, or of another block size")
            return memory
        told = getattr(memory, "__cuda_array_interface__", None)
        if told is None or device.kind != "cuda":
            raise BadRequest(f"{type(memory).__name__} is no memory of the device {device.name}")
        shape, item = tuple(told["shape"]), int(str(told["typestr"])[2:])
        size = math.prod(shape) * item
        if told.get("strides") is not None and tuple(told["strides"]) != _packed(shape, item):
            raise BadRequest("memory on the device must be contiguous")
        if size % block_bytes or told["data"][1]:
            raise BadRequest(f"{size} bytes on the device are no writable blocks of {block_bytes} bytes")
        return cls(device, int(told["data"][0]), size // block_bytes, block_bytes, memory)

    def __len__(self) -> int:
        return self._n

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the interface (Numba's documentation); work on our memory is done whenever we hand it out."""
        if self.device.kind != "cuda":
            raise AttributeError(f"memory of the device {self.device.name} is not CUDA's")
        shape = (self._n, self.block_bytes)
        return {"version": 3, "shape": shape, "typestr": "|u1", "data": (self.address, False), "strides": None}

    def upload(self, blocks: Bytes) -> None:
        """Fill them from host memory, `[n, block_bytes]`."""
        room = np.ascontiguousarray(blocks)
        self.device.move(host_moves(self.address, np.arange(self._n), room, self.block_bytes))

    def download(self) -> Bytes:
        """A copy in host memory, `[n, block_bytes]`."""
        out = np.empty((self._n, self.block_bytes), np.uint8)
        self.device.move(host_moves(self.address, np.arange(self._n), out, self.block_bytes, off=True))
        return out


class _Holder:
    """Dies with the last rows."""


def _packed(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    """Strides of a contiguous array."""
    found, step = [], item
    for size in reversed(shape):
        found.append(step)
        step *= size
    return tuple(reversed(found))
