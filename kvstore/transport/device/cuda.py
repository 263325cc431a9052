"""A GPU as a device of the store, through the CUDA runtime."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from ctypes import byref, c_int, c_size_t, c_void_p
from typing import Any

import numpy as np

from kvstore.errors import BadRequest, StagingRejected
from kvstore.header import Bytes
from kvstore.transport.device.gather import Gather
from kvstore.transport.device.memory import Exported, Move
from kvstore.transport.device.runtime import (
    HANDLE_BYTES,
    HOST_ALLOC_PORTABLE,
    IPC_LAZY_PEER_ACCESS,
    LEGACY_STREAM,
    MEMCPY_DEFAULT,
    PEER_ACCESS_ALREADY_ENABLED,
    STREAM_NON_BLOCKING,
    CudaError,
    Handle,
    Runtime,
    runtime,
)

_GRANULE = 2 << 20
"""`cudaMalloc` cuts smaller allocations out of pages of this size, and a handle opens the page: what lies beside them
would be shared, too. So sizes are rounded up to it (CUDA's programming guide, "Interprocess Communication")."""


def ordinal_of(bus: str) -> int | None:
    """Which device of this process sits there; None where it is not visible. Raises `BadRequest` without CUDA."""
    library = runtime()
    return next((at for at in range(library.devices) if library.bus_of(at) == bus), None)


class CudaMemory:
    """From `cudaMalloc`, or (`theirs`) opened from a handle. `place`: the device in whose context it is known here."""

    def __init__(self, device: CudaDevice, address: int, size: int, place: int, *, theirs: bool) -> None:
        self.address = address
        self.size = size
        self._device = device
        self._place = place
        self._theirs = theirs

    def export(self) -> Exported:
        handle = Handle()
        with self._device.current(self._place) as library:
            library.call("cudaIpcGetMemHandle", byref(handle), self.address)
        words = {"kind": "cuda", "handle": bytes(handle.reserved).hex(), "size": self.size, "bus": self._device.bus}
        return Exported(words)

    def close(self) -> None:
        address, self.address = self.address, 0
        if not address:
            return
        with self._device.current(self._place) as library, contextlib.suppress(CudaError):
            library.call("cudaIpcCloseMemHandle" if self._theirs else "cudaFree", address)


class CudaDevice:
    """`cuda:N` as this process counts them. One stream of its own; the caller's current device is left as it was."""

    kind = "cuda"
    lane = "cuda_ipc"

    def __init__(self, ordinal: int) -> None:
        self._library: Runtime = runtime()
        self.name = f"cuda:{ordinal}"
        if ordinal >= self._library.devices:
            raise BadRequest(f"no {self.name} here: CUDA sees {self._library.devices} (CUDA_VISIBLE_DEVICES?)")
        self.ordinal = ordinal
        self.bus = self._library.bus_of(ordinal)
        self._moving = threading.Lock()
        stream = c_void_p()
        with self.current(ordinal) as library:
            library.call("cudaStreamCreateWithFlags", byref(stream), STREAM_NON_BLOCKING)
        self._stream = stream
        self.gather: Gather | None = Gather(self)

    @contextlib.contextmanager
    def current(self, ordinal: int) -> Iterator[Runtime]:
        """A device is current a thread, and torch goes by what it finds."""
        before = c_int(0)
        self._library.call("cudaGetDevice", byref(before))
        if before.value == ordinal:
            yield self._library
            return
        self._library.call("cudaSetDevice", ordinal)
        try:
            yield self._library
        finally:
            self._library.call("cudaSetDevice", before.value)

    # --- memory -----------------------------------------------------------------------------------------------------

    def allocate(self, size: int, *, lent: bool = False) -> CudaMemory:
        """What is exported can be written to by whoever opens it, `lent` or not."""
        rounded = -(-size // _GRANULE) * _GRANULE
        address = c_void_p()
        try:
            with self.current(self.ordinal) as library:
                library.call("cudaMalloc", byref(address), rounded)
        except CudaError as error:
            free = self.free_bytes()
            left = "" if free is None else f", {free / (1 << 20):.0f} MiB are free"
            raise BadRequest(f"{self.name}: {rounded / (1 << 20):.0f} MiB cannot be had{left}: {error}") from None
        return CudaMemory(self, address.value or 0, rounded, self.ordinal, theirs=False)

    def open(self, words: dict[str, Any], fds: list[int], *, writable: bool = False) -> CudaMemory:
        handle = _handle_of(words)
        if fds:
            raise StagingRejected("a CUDA handle comes without descriptors")
        place = self._place_for(str(words.get("bus", "")))
        address = c_void_p()
        try:
            with self.current(place) as library:
                library.call("cudaIpcOpenMemHandle", byref(address), handle, IPC_LAZY_PEER_ACCESS)
        except CudaError as error:
            raise StagingRejected(
                f"{self.name} cannot open memory of the GPU at {words.get('bus')}: {error}; CUDA IPC needs one host, "
                "one IPC namespace and memory from cudaMalloc: else use nixl"
            ) from None
        return CudaMemory(self, address.value or 0, int(words["size"]), place, theirs=True)

    def _place_for(self, bus: str) -> int:
        """Our own context where the GPUs reach each other (or the other is not visible: the driver may know better),
        else the context of the other GPU: copies then go through the host, and the driver sees to it."""
        theirs = ordinal_of(bus)
        if theirs is None or theirs == self.ordinal:
            return self.ordinal
        return self.ordinal if self._reaches(theirs) else theirs

    def _reaches(self, ordinal: int) -> bool:
        can = c_int(0)
        self._library.call("cudaDeviceCanAccessPeer", byref(can), self.ordinal, ordinal)
        return bool(can.value)

    def reach(self, other: CudaDevice) -> bool:
        """From now on copies from that device's memory of this very process go straight here, where they can; whether
        they do. (Memory of other processes is opened so.)"""
        if not self._reaches(other.ordinal):
            return False
        with self.current(self.ordinal) as library:
            try:
                library.call("cudaDeviceEnablePeerAccess", other.ordinal, 0)
            except CudaError as error:
                if error.number != PEER_ACCESS_ALREADY_ENABLED:
                    raise
        return True

    def host(self, size: int) -> Bytes:
        """Page-locked, for all devices of the process; freed with the last array that looks at it."""
        address = c_void_p()
        with self.current(self.ordinal) as library:
            library.call("cudaHostAlloc", byref(address), size, HOST_ALLOC_PORTABLE)
        holder = _Locked(address.value or 0, size)
        weakref.finalize(holder, self._free_host, holder.address).atexit = False
        found: Bytes = np.asarray(holder)
        found.fill(0)
        return found

    def _free_host(self, address: int) -> None:
        with self.current(self.ordinal) as library, contextlib.suppress(CudaError):
            library.call("cudaFreeHost", address)

    def free_bytes(self) -> int | None:
        free, total = c_size_t(0), c_size_t(0)
        try:
            with self.current(self.ordinal) as library:
                library.call("cudaMemGetInfo", byref(free), byref(total))
        except CudaError:
            return None
        return free.value

    # --- copying ----------------------------------------------------------------------------------------------------

    def move(self, moves: Sequence[Move]) -> None:
        with self._moving, self.current(self.ordinal) as library:
            try:
                for move in moves:
                    self._post(library, move)
            finally:
                library.call("cudaStreamSynchronize", self._stream)

    def _post(self, library: Runtime, move: Move) -> None:
        if move.packed:
            size = move.width * move.rows
            library.call("cudaMemcpyAsync", move.to, move.source, size, MEMCPY_DEFAULT, self._stream)
            return
        pitches = (move.to, move.to_pitch, move.source, move.source_pitch, move.width, move.rows)
        library.call("cudaMemcpy2DAsync", *pitches, MEMCPY_DEFAULT, self._stream)

    def settle(self) -> None:
        torch: Any = sys.modules.get("torch")
        known = torch is not None and torch.cuda.is_initialized()
        stream = torch.cuda.current_stream(self.ordinal).cuda_stream if known else LEGACY_STREAM
        with self.current(self.ordinal) as library:
            library.call("cudaStreamSynchronize", stream)

    def quiesce(self) -> None:
        with self.current(self.ordinal) as library:
            library.call("cudaDeviceSynchronize")


class _Locked:
    """What arrays over page-locked memory are made of: its end is the last of theirs."""

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, False)}


def _handle_of(words: dict[str, Any]) -> Handle:
    """Raises `StagingRejected` for what is none."""
    try:
        raw = bytes.fromhex(str(words["handle"]))
        size = int(words["size"])
    except (KeyError, TypeError, ValueError):
        raw, size = b"", 0
    if words.get("kind") != "cuda" or len(raw) != HANDLE_BYTES or size < 1:
        raise StagingRejected("not a CUDA memory handle: 64 bytes and a size are expected")
    handle = Handle()
    ctypes.memmove(handle.reserved, raw, HANDLE_BYTES)
    return handle
