"""What tests of the nixl transport share. They skip by name where NIXL cannot be had."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kvstore.transport.nixl.library import flavour

NEEDS_NIXL = pytest.mark.skipif(
    flavour() is None, reason="NIXL is not installed (pip install --no-deps nixl-cu12, or nixl-cu13)"
)


async def until(true: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while True:
        found = true()
        if found if isinstance(found, bool) else await found:
            return
        assert time.monotonic() < end, f"not seen within {seconds:g} s: {what}"
        await asyncio.sleep(0.02)


async def page_of(url: str) -> str:
    def scrape() -> str:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(scrape)


async def sample(url: str, name: str) -> float:
    """The sum of a series over its labels; -1 where there is none."""
    found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)", await page_of(url), re.M)
    return sum(map(float, found)) if found else -1.0


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    return [
        int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()
    ]


def mover_of(pid: int) -> int:
    """The process beside a shard that moves its blocks."""
    (found,) = children(pid)
    return found


def state_of(pid: int) -> str:
    """One letter, as in proc(5); "" for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def stopped(pid: int) -> bool:
    """Whether SIGSTOP has reached every thread of a process: `kill` returns before that."""
    states = [(task / "stat").read_text().rsplit(")", 1)[1].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()]
    return set(states) == {"T"}


def counted(pid: int) -> dict[str, Any]:
    """Descriptors, threads, mappings and resident KiB of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return {
        "fds": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": int(re.search(r"Threads:\s+(\d+)", status)[1]),  # type: ignore[index]
        "maps": len(Path(f"/proc/{pid}/maps").read_text().splitlines()),
        "rss_kib": int(re.search(r"VmRSS:\s+(\d+)", status)[1]),  # type: ignore[index]
    }
