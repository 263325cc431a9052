"""Devices that blocks lie on, and memory there: what `cuda.py` and the test device `shm.py` both are."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kvstore.errors import BadRequest
from kvstore.header import Bytes

if TYPE_CHECKING:
    from kvstore.transport.device.gather import Gather

_NAME = re.compile(r"shm|cuda:\d{1,3}")


class Move(NamedTuple):
    """`rows` pieces of `width` bytes, a pitch apart on either side. Addresses are of either memory: one address space
    holds host and devices (CUDA's unified addressing)."""

    to: int
    to_pitch: int
    source: int
    source_pitch: int
    width: int
    rows: int

    @property
    def packed(self) -> bool:
        """One piece of memory on both sides."""
        return self.rows == 1 or self.to_pitch == self.source_pitch == self.width


@dataclass(frozen=True, slots=True)
class Exported:
    """What another process opens memory by: words for a door's message, and descriptors beside them (not ours to
    close)."""

    words: dict[str, Any]
    fds: list[int] = field(default_factory=list)


class DeviceMemory(Protocol):
    """One piece of a device's memory: ours, or another process's that was opened here."""

    address: int
    size: int

    def export(self) -> Exported:
        """For processes of this host. Raises `DeviceFailed`."""
        ...

    def close(self) -> None:
        """Let it go; nothing may copy from or to it any more. May be called twice."""
        ...


class Device(Protocol):
    """A device as one process uses it. Its methods may be called from any thread."""

    name: str
    kind: str
    gather: Gather | None
    """Copies many short runs at once; None: it cannot."""
    lane: str
    """How its memory is reached from other processes, as `kv_transport_info` says it."""

    def allocate(self, size: int, *, lent: bool = False) -> DeviceMemory:
        """New memory; `lent`: another process will write there, too. Raises `BadRequest` where there is not so much."""
        ...

    def open(self, words: dict[str, Any], fds: list[int], *, writable: bool = False) -> DeviceMemory:
        """Another process's memory; `writable`: it is lent to us. Takes over the descriptors once it returns. Raises
        `StagingRejected`."""
        ...

    def host(self, size: int) -> Bytes:
        """Host memory between which and this device copies are fastest; zeroed."""
        ...

    def move(self, moves: Sequence[Move]) -> None:
        """Copy; returns when all of it has arrived. Raises `DeviceFailed`; then too nothing is under way any more."""
        ...

    def settle(self) -> None:
        """Returns when what the calling thread has begun on its current stream of the device is done: it may just be
        writing to what it hands over."""
        ...

    def quiesce(self) -> None:
        """Returns when whatever this process has begun on the device so far is done."""
        ...

    def free_bytes(self) -> int | None:
        """What can still be allocated; None: cannot tell."""
        ...


def require_name(name: str) -> str:
    """Raises `BadRequest` for what names no device."""
    if not _NAME.fullmatch(name):
        raise BadRequest(f"no device {name!r}: cuda:N names a GPU (shm is a test device, in host memory)")
    return name


_devices: dict[str, Device] = {}
_lock = threading.Lock()


def device_named(name: str) -> Device:
    """The device, one object a process. Raises `BadRequest` where there is none such."""
    with _lock:
        found = _devices.get(require_name(name))
        if found is None:
            found = _devices[name] = _made(name)
        return found


def _made(name: str) -> Device:
    if name == "shm":
        from kvstore.transport.device.shm import ShmDevice

        return ShmDevice()
    from kvstore.transport.device.cuda import CudaDevice

    return CudaDevice(int(name.removeprefix("cuda:")))


def device_for(words: dict[str, Any]) -> Device:
    """Where memory exported so is best read from by a process that has no device of its own: the one that it is on, or
    the first, where that one is not visible here. Raises `BadRequest`."""
    if words.get("kind") != "cuda":
        return device_named("shm")
    from kvstore.transport.device.cuda import ordinal_of

    at = ordinal_of(str(words.get("bus", "")))
    return device_named(f"cuda:{0 if at is None else at}")
