"""What ails a device: ECC errors, remapped rows, Xid errors."""

from __future__ import annotations

import ctypes
from collections import Counter
from typing import Any

from probes.nvml.asker import Asker
from probes.nvml.samples import Samples

_XID = 0x8
"""nvmlEventTypeXidCriticalError."""
_EVENTS_MOST = 256
"""Events taken in one reading: a storm must not hold it up (policy); what is left comes with the next."""
_ERRORS = ("corrected", "uncorrected")
_LIFETIMES = ("volatile", "aggregate")


def ecc(ask: Asker, out: Samples) -> None:
    name = "ecc_errors_total"
    for kind, error in enumerate(_ERRORS):
        for counter, lifetime in enumerate(_LIFETIMES):
            count = ask.number(name, "nvmlDeviceGetTotalEccErrors", kind, counter)
            out.add(name, count, error=error, lifetime=lifetime)


def remapped_rows(ask: Asker, out: Samples) -> None:
    told = ask.ask("remapped_rows_total", "nvmlDeviceGetRemappedRows")
    if told is None:
        return
    for error, rows in zip(_ERRORS, told[:2], strict=True):
        out.add("remapped_rows_total", ask.checked("remapped_rows_total", rows), error=error)
    for name, flag in zip(("row_remap_pending", "row_remap_failed"), told[2:], strict=True):
        out.add(name, ask.checked(name, flag, most=1))


class Xids:
    """Xid errors of all devices since this process began to listen; NVML tells nothing of before."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._set: Any = None
        self._heard: dict[int, tuple[Counter[int], int]] = {}

    def listen(self, ask: Asker) -> None:
        """Add a device; where its events cannot be had, ``xid_last`` is missing."""
        if self._set is None:
            self._set = ask.plain("nvmlEventSetCreate").value
        if self._set is None:
            return
        types = ask.reply("nvmlDeviceGetSupportedEventTypes").value or 0
        if types & _XID and ask.plain("nvmlDeviceRegisterEvents", ask.handle, _XID, self._set).state is None:
            self._heard[_address(ask.handle)] = (Counter(), 0)

    def take(self) -> None:
        """Take what has come, without waiting."""
        if not self._heard:
            return
        for _ in range(_EVENTS_MOST):
            try:
                event = self._nvml.nvmlEventSetWait(self._set, 0)
            except self._nvml.NVMLError:  # none is there; a device that is lost says so when it is asked
                return
            known = self._heard.get(_address(event.device))
            if known is not None and event.eventType & _XID:
                known[0][int(event.eventData)] += 1
                self._heard[_address(event.device)] = (known[0], int(event.eventData))

    def tell(self, ask: Asker, out: Samples) -> None:
        known = self._heard.get(_address(ask.handle))
        if known is None:
            ask.lack("xid_last", "unsupported")
            return
        counts, last = known
        out.add("xid_last", last)
        for xid, count in counts.items():
            out.add("xid_errors_total", count, xid=str(xid))


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
