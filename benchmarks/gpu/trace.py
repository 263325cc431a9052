"""The PyTorch profiler on a few steps: what the GPU did, and a trace of it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from gpu.check import Check
from gpu.kineto import MOST_BYTES, Activity, activity, trim


def profiled(check: Check, name: str, step: Callable[[], object], steps: int, *, kept: bool) -> Activity | None:
    """Profile `steps` calls, keep the trace where results go (`kept`). None where it shows nothing of a GPU."""
    step()
    kinds = [ProfilerActivity.CPU] if check.cpu else [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=kinds) as seen:
        for number in range(steps):
            with record_function(f"kv.step|{number:016x}"):
                step()
        if not check.cpu:
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        whole = json.loads(path.read_text(encoding="utf-8"))
    if kept and check.out is not None:
        keep(check, name, whole)
    return activity(whole["traceEvents"], steps)


def keep(check: Check, name: str, whole: dict[str, Any]) -> None:
    """`trace-NAME.json` in the results' folder: nothing that names the machine, and no more than `MOST_BYTES`."""
    assert check.out is not None
    trimmed = trim(whole)
    path = check.out / f"trace-{name.replace(', ', '-').replace(' ', '-')}.json"
    text = json.dumps(trimmed, separators=(",", ":"))
    if len(text) > MOST_BYTES:
        check.skipped(f"trace of {name}", f"{len(text):,} bytes after trimming: not kept")
        return
    path.write_text(text + "\n", encoding="utf-8")
    check.measured(f"trace of {name}", len(text) / 1000, "kB", path.name)
