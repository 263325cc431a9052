"""How much memory this host has left."""

from __future__ import annotations

import contextlib
from pathlib import Path

from kvstore.errors import BadRequest

MIB = 1 << 20


def require_memory(size: int, shards: int = 1) -> None:
    """Raise `BadRequest` when pools of `size` bytes do not fit into the memory that is free now: shards would die of it
    later."""
    free = free_memory()
    if free is not None and size * shards > free:
        pools = f"a pool of {size / MIB:.0f} MiB" if shards == 1 else f"{shards} pools of {size / MIB:.0f} MiB each"
        raise BadRequest(f"{pools} of shared memory, and {free / MIB:.0f} MiB are free: choose fewer --blocks")


def free_memory() -> int | None:
    """Bytes that may still be taken: of the host, or of the control group if that is less. None: cannot tell."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(found) if found else None
