"""Compute processes on a device, and what a container makes of them."""

from __future__ import annotations

from pathlib import Path

from probes.nvml.asker import Asker
from probes.nvml.samples import Samples

_NO_INSTANCE = 0xFFFFFFFF
_SEEN_BYTES = 1 << 30
"""Memory in use from which on some process ought to be shown (policy: driver and firmware alone keep less)."""


def read(ask: Asker, out: Samples, used_bytes: float | None) -> str:
    """The processes' memory, by the driver's pid; the answer is a remark on what a container hides, or empty."""
    told = ask.ask("process_memory_bytes", "nvmlDeviceGetComputeRunningProcesses")
    if told is None:
        return ""
    for process in told:
        if process.usedGpuMemory is None:
            ask.lack("process_memory_bytes", "blank")
            continue
        labels = {"pid": str(process.pid)}
        if process.gpuInstanceId != _NO_INSTANCE:
            labels["GPU_I_ID"] = str(process.gpuInstanceId)
        out.add("process_memory_bytes", ask.checked("process_memory_bytes", process.usedGpuMemory), **labels)
    if not told and used_bytes is not None and used_bytes > _SEEN_BYTES:
        return f"{used_bytes / 2**30:.0f} GiB in use and no process shown: {_HOST_PIDS}"
    if told and not any(Path("/proc", str(process.pid)).exists() for process in told):
        return f"its processes' ids are of another pid namespace: {_HOST_PIDS}"
    return ""


_HOST_PIDS = "a container sees them with the host's pid namespace only"
