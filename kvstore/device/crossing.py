"""Everything that goes between the host and a device, counted and timed by site.

A read waits until the device has done all that was asked of it before: it is counted so that a screen can show who
waits where (`kv_device_reads_total`, `kv_sync_seconds_total`, `kv_device_uploads_total` …).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvstore.errors import BadRequest
from kvstore.meters import Meters
from probes.instrument import Instrument

Ints = npt.NDArray[np.int32]
_ALIGNMENT = 4
"""int32 words in 16 bytes: a launch whose addresses are no multiples of that compiles the kernel anew."""
_instrument = Instrument("kvstore.device")


def first_line(error: BaseException) -> str:
    """What torch says, without its advice and its stack."""
    return (str(error).splitlines() or [type(error).__name__])[0]


class Crossing:
    """One device and the meters of its traffic. Raises `BadRequest` where torch has no such device."""

    def __init__(self, device: torch.device | str, meters: Meters | None = None) -> None:
        try:
            self.device = torch.device(device)
            torch.empty(1, device=self.device)
        except (RuntimeError, AssertionError, TypeError, ValueError) as error:
            raise BadRequest(f"torch has no device {str(device)!r} here: {first_line(error)}") from None
        self.meters = meters or Meters()

    def read(self, site: str, tensor: Tensor) -> Tensor:
        """A copy of `tensor` on the host, once the device has got there. `site` is one of `meters.DEVICE_SITES`."""
        begun = time.perf_counter()
        with _instrument.span(f"kv.{site}", blocks=tensor.numel()):
            host = tensor.to("cpu", copy=True)
        self.meters.synced(site, time.perf_counter() - begun)
        return host

    def send(self, site: str, *columns: npt.ArrayLike) -> tuple[Tensor, ...]:
        """Device copies of int32 columns, in one upload that nobody waits for."""
        begun = time.perf_counter()
        arrays = [np.asarray(column, np.int32).reshape(-1) for column in columns]
        starts = np.cumsum([0, *(-(-len(array) // _ALIGNMENT) * _ALIGNMENT for array in arrays)]).tolist()
        packed = np.zeros(starts[-1], np.int32)
        for start, array in zip(starts, arrays, strict=False):
            packed[start : start + len(array)] = array
        host = torch.from_numpy(packed)
        if self.device.type == "cuda":
            host = host.pin_memory()  # torch keeps the pages until the copy has passed
        there = host.to(self.device, non_blocking=True)
        self.meters.uploaded(site, packed.nbytes, time.perf_counter() - begun)
        return tuple(there[start : start + len(array)] for start, array in zip(starts, arrays, strict=False))

    def send_alone(self, site: str, values: Sequence[int]) -> Tensor:
        """A device copy of a few int32 from ordinary memory: the host waits for it. The mistake, kept for rehearsal."""
        begun = time.perf_counter()
        there = torch.tensor(values, dtype=torch.int32, device=self.device)
        self.meters.uploaded(site, 4 * len(values), time.perf_counter() - begun)
        return there
