"""The process that runs sections, one after another, and tells the command what they found: one JSON object a line.

python -m gpu.worker '{"report": 5, "parent": 77, "sections": [["moves", "gpu.check_moves", 20]], "cpu": true, …}'
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu.check import Check
from gpu.rows import Row, one_line
from gpu.runner import GPU_IN_ERROR


class Reporter:
    """Lines to the command, through a descriptor of their own: a library may print what it likes."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "w", buffering=1)

    def send(self, **message: Any) -> None:
        try:
            self._file.write(json.dumps(message) + "\n")
        except BrokenPipeError:
            end_all()  # the command is gone

    def row(self, row: Row) -> None:
        self.send(row=row.as_dict())


def facts(cpu: bool) -> dict[str, Any]:
    """What the figures were measured on: nothing that names the machine."""
    import numpy
    import torch
    import triton

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "cores": len(os.sched_getaffinity(0)),
        "interpreted": cpu,
    }
    if not cpu:
        device = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": device.name,
            "capability": f"{device.major}.{device.minor}",
            "memory_bytes": device.total_memory,
            "processors": device.multi_processor_count,
            "l2_bytes": getattr(device, "L2_cache_size", None),
        }
    return found


def refusal(cpu: bool) -> str:
    """Why nothing can be run here; empty when it can."""
    missing = [name for name in ("numpy", "torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed: pip install '.[cuda]' in kvscope's checkout"
    import torch

    return "" if cpu or torch.cuda.is_available() else "no CUDA device here; --cpu runs the same logic without one"


def run(module: str, check: Check) -> None:
    """One section; what it raises becomes a row."""
    try:
        importlib.import_module(module).run(check)
    except Exception as error:
        traceback.print_exc()
        check.failed("section", one_line(error))


@contextmanager
def settled(cpu: bool) -> Iterator[None]:
    """Memory of the section is given back behind it. Ends the process where the GPU is in error."""
    yield
    if cpu:
        return
    import torch

    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError as error:
        print(f"the GPU is in error: {one_line(error)}", file=sys.stderr)
        raise SystemExit(GPU_IN_ERROR) from None


def die_with(parent: int) -> None:
    """End this process and all that it has started, once `parent` is gone: nobody else would."""
    while os.getppid() == parent:
        time.sleep(0.5)
    end_all()


def end_all() -> None:
    """End this process and all that it has started, at once and without a word."""
    os.killpg(0, signal.SIGKILL)


def main(words: str) -> int:
    order = json.loads(words)
    threading.Thread(target=die_with, args=(order["parent"],), name="parent", daemon=True).start()
    reporter = Reporter(order["report"])
    why = refusal(order["cpu"])
    if why:
        reporter.send(refused=why)
        return 0
    found = facts(order["cpu"])
    reporter.send(facts=found)
    for name, module, seconds in order["sections"]:
        reporter.send(begin=name)
        check = Check(
            name, order["cpu"], order["seed"], time.monotonic() + seconds, reporter.row, order["wrong"],
            Path(order["out"]) if order["out"] else None, found,
        )  # fmt: skip
        try:
            with settled(order["cpu"]):
                run(module, check)
        except SystemExit:
            check.failed("GPU", "left in error: the sections behind go on in another process")
            raise
        finally:
            reporter.send(end=name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
