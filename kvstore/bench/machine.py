"""What the machine is that a figure was measured on: enough to judge the figure, nothing that names the machine."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


def facts() -> dict[str, Any]:
    """Processor, cores that may be used, memory, kernel, versions, and the load before the measurement."""
    return {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load_1m": round(os.getloadavg()[0], 2),
    }


def line(found: dict[str, Any]) -> str:
    """The facts for a person, with a warning when others were at work."""
    text = (
        f"{found['cpu']}, {found['cores']} cores, {found['memory_gib']} GiB, Linux {found['kernel']}, "
        f"Python {found['python']}, NumPy {found['numpy']}, load {found['load_1m']}"
    )
    return text + (" (busy: figures may be high)" if found["load_1m"] > 0.5 * found["cores"] else "")


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this process on one core meanwhile, so that no helper thread adds to what is measured."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _processor() -> str:
    try:
        for row in Path("/proc/cpuinfo").read_text().splitlines():
            if row.startswith("model name"):
                return row.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine() or sys.platform
