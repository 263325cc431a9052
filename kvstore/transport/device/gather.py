"""One launch for many short runs: a kernel that copies blocks from one list of places to another.

A copy engine takes some microseconds a piece however short it is: of a thousand blocks of 16 KiB that lie apart, most
of the time goes into starting copies. The kernel reads the other GPU's memory as its own (the handle was opened with
peer access). It is used where the process has torch and triton loaded anyway; loading them takes longer than all that
it saves.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from kvstore.transport.device.cuda import CudaDevice

Slots = npt.NDArray[np.int64]

SHORT_BYTES = 256 << 10
"""Mean length of a run above which a copy engine keeps up: it moves that in the time that it takes to start (policy;
450 GB/s move 256 KiB in 0.6 µs, a call from Python takes longer)."""
FEWEST_RUNS = 8
_UNIT = 4
_log = logging.getLogger("kvstore.transport.device")


def worth_it(runs: int, blocks: int, block_bytes: int) -> bool:
    """Whether so many runs of so many blocks are better copied by a kernel."""
    return runs >= FEWEST_RUNS and blocks * block_bytes < runs * SHORT_BYTES and block_bytes % (4 * _UNIT) == 0


class Gather:
    """Of one device; `usable` until something about it fails, which is then said once and done without."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._failed = False
        self._launching = threading.Lock()
        self._stream: Any = None

    @property
    def usable(self) -> bool:
        return not self._failed and "torch" in sys.modules and "triton" in sys.modules

    def copy(self, to: int, places: Slots, source: int, slots: Slots, block_bytes: int) -> bool:
        """Blocks `slots` of the packed memory at `source` to blocks `places` of that at `to`; returns when they have
        arrived. False where it could not: nothing is under way then, and copies do."""
        with self._launching:
            try:
                self._copy(to, places, source, slots, block_bytes)
            except Exception as error:  # a kernel that does not compile or launch is no reason to have no blocks
                self._failed = True
                _log.warning("%s: blocks are copied run by run, the kernel failed: %s", self._device.name, error)
                return False
        return True

    def _copy(self, to: int, places: Slots, source: int, slots: Slots, block_bytes: int) -> None:
        import torch

        from kvstore.transport.device.gather_kernel import launch

        card = torch.device("cuda", self._device.ordinal)
        if self._stream is None:
            self._stream = torch.cuda.Stream(card)
        with torch.cuda.device(card), torch.cuda.stream(self._stream):
            lists = torch.from_numpy(np.stack([places, slots])).to(card)
            units = block_bytes // _UNIT
            launch(Pointer(to), Pointer(source), lists[0], lists[1], units)
            self._stream.synchronize()


class Pointer:
    """An address as Triton takes it: it asks a tensor for no more than this, and memory of another GPU is no tensor of
    ours."""

    def __init__(self, address: int) -> None:
        import torch

        self.dtype = torch.int32
        self._address = address

    def data_ptr(self) -> int:
        return self._address
