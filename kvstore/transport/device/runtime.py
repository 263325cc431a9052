"""The CUDA runtime through ctypes: which library, and the calls that are made of it.

No compiler, no torch, no headers: the calls are those that CUDA 11 to 13 have alike. The library is the one that torch
has brought, one of NVIDIA's wheels, or the toolkit's; `KVSTORE_CUDART=PATH` names it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Any

from kvstore.errors import BadRequest, DeviceFailed

LIBRARY = "KVSTORE_CUDART"
"""The variable that names the library."""
HANDLE_BYTES = 64
_SONAMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")
_TOOLKIT = Path("/usr/local/cuda/lib64")

MEMCPY_DEFAULT = 4
STREAM_NON_BLOCKING = 1
LEGACY_STREAM = 0
"""The default stream, which torch's is unless somebody says otherwise."""
HOST_ALLOC_PORTABLE = 1
IPC_LAZY_PEER_ACCESS = 1
PEER_ACCESS_ALREADY_ENABLED = 704
"""`cudaErrorPeerAccessAlreadyEnabled`: by torch, or by an opened handle."""


class Handle(ctypes.Structure):
    """`cudaIpcMemHandle_t`, passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


_CALLS: dict[str, tuple[Any, ...]] = {
    "cudaGetDeviceCount": (POINTER(c_int),),
    "cudaGetDevice": (POINTER(c_int),),
    "cudaSetDevice": (c_int,),
    "cudaDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "cudaDeviceCanAccessPeer": (POINTER(c_int), c_int, c_int),
    "cudaDeviceEnablePeerAccess": (c_int, c_uint),
    "cudaDeviceSynchronize": (),
    "cudaMemGetInfo": (POINTER(c_size_t), POINTER(c_size_t)),
    "cudaMalloc": (POINTER(c_void_p), c_size_t),
    "cudaFree": (c_void_p,),
    "cudaHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cudaFreeHost": (c_void_p,),
    "cudaIpcGetMemHandle": (POINTER(Handle), c_void_p),
    "cudaIpcOpenMemHandle": (POINTER(c_void_p), Handle, c_uint),
    "cudaIpcCloseMemHandle": (c_void_p,),
    "cudaStreamCreateWithFlags": (POINTER(c_void_p), c_uint),
    "cudaStreamSynchronize": (c_void_p,),
    "cudaMemcpyAsync": (c_void_p, c_void_p, c_size_t, c_int, c_void_p),
    "cudaMemcpy2DAsync": (c_void_p, c_size_t, c_void_p, c_size_t, c_size_t, c_size_t, c_int, c_void_p),
    "cudaGetLastError": (),
}


class CudaError(DeviceFailed):
    """A call of the CUDA runtime failed; `number` is its `cudaError_t`."""

    def __init__(self, call: str, number: int, text: str) -> None:
        super().__init__(f"{call}: {text} ({number})")
        self.number = number


class Runtime:
    """One loaded libcudart. Raises `OSError` where it is no such library."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._library = ctypes.CDLL(path)
        try:
            for name, arguments in _CALLS.items():
                getattr(self._library, name).argtypes = arguments
                getattr(self._library, name).restype = c_int
            self._library.cudaGetErrorString.argtypes = (c_int,)
            self._library.cudaGetErrorString.restype = c_char_p
        except AttributeError as error:
            raise OSError(f"{path} is no CUDA runtime: {error}") from None

    def call(self, name: str, *arguments: Any) -> None:
        """Raises `CudaError`."""
        number = int(getattr(self._library, name)(*arguments))
        if number:
            self._library.cudaGetLastError()  # or the next call of somebody else hears of it
            raise CudaError(name, number, self.text(number))

    def text(self, number: int) -> str:
        said: bytes | None = self._library.cudaGetErrorString(number)
        return (said or b"unknown error").decode("utf-8", "replace")

    @property
    def devices(self) -> int:
        count = c_int(0)
        self.call("cudaGetDeviceCount", ctypes.byref(count))
        return count.value

    def bus_of(self, ordinal: int) -> str:
        """Where a device sits, as `0000:1b:00.0`: the same in every process, whatever `CUDA_VISIBLE_DEVICES` says."""
        room = ctypes.create_string_buffer(32)
        self.call("cudaDeviceGetPCIBusId", room, len(room), ordinal)
        return room.value.decode("ascii").lower()


_found: Runtime | None = None


def runtime() -> Runtime:
    """The first that sees a GPU. Raises `BadRequest` in one line where there is none."""
    global _found
    if _found is None:
        _found = _search()
    return _found


def _search() -> Runtime:
    why = "no libcudart was found: install a CUDA build of torch or nvidia-cuda-runtime, or name it with KVSTORE_CUDART"
    for path in _candidates():
        try:
            tried = Runtime(path)
        except OSError as error:
            if os.environ.get(LIBRARY):
                why = str(error)
            continue
        try:
            if tried.devices > 0:
                return tried
            why = "it sees no GPU"
        except CudaError as error:
            why = str(error)
        why = f"{path}: {why}"
    raise BadRequest(f"no CUDA here: {why}")


def _candidates() -> Iterator[str]:
    """Paths and names, best first; what the process has loaded already is found by its name."""
    named = os.environ.get(LIBRARY)
    if named:
        yield named
        return
    yield from _SONAMES
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or [] if spec is not None else []:
        for place in ("cu13/lib", "cuda_runtime/lib"):
            yield from sorted(map(str, (Path(folder) / place).glob("libcudart.so.*")), reverse=True)
    yield from sorted(map(str, _TOOLKIT.glob("libcudart.so.*")), reverse=True)
