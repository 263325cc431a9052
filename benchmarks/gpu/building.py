"""FlashInfer compiles its kernels when they are first asked for, a minute or two: here in the background, meanwhile.

It needs nvcc, ninja and the package `flashinfer`; where one is missing, nothing is begun and the arm is left out.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

FOLDER = "KVSCOPE_FLASHINFER"
"""The variable that names the folder of what is compiled, and of the marks `ready-DTYPE` and `failed-DTYPE`."""
COMPILED = ("flashinfer_jit_cache",)
"""Packages of compiled kernels: with one of them there is nothing to do."""
_NVCC = Path("/usr/local/cuda/bin/nvcc")


def why_not() -> str:
    """Why FlashInfer cannot be had here, compiled or not; empty when it can."""
    if importlib.util.find_spec("flashinfer") is None:
        return "flashinfer is not installed"
    if compiled():
        return ""
    if shutil.which("nvcc") is None and not _NVCC.exists():
        return "flashinfer has no compiled kernels here, and there is no nvcc"
    if shutil.which("ninja") is None and importlib.util.find_spec("ninja") is None:
        return "flashinfer has no compiled kernels here, and there is no ninja"
    return ""


def compiled() -> bool:
    """Whether a package of compiled kernels is installed."""
    return any(importlib.util.find_spec(name) is not None for name in COMPILED)


class Build:
    """The compiling process, if there is one to start; `variables` for those who want to use what it makes."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.variables: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        if why_not() or compiled():
            return
        # It calls both tools by name, when it loads what is compiled, too; ninja may lie beside Python alone.
        places = [environment.get("PATH", ""), str(Path(sys.executable).parent), str(_NVCC.parent)]
        self.variables = {
            FOLDER: str(folder),
            "FLASHINFER_WORKSPACE_BASE": str(folder),
            "PATH": os.pathsep.join(filter(None, places)),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpu.rival", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**environment, **self.variables},
            start_new_session=True,
        )

    def end(self) -> None:
        """End it and its compilers."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30.0)


def outcome(dtype: str, patience_s: float) -> str:
    """Why the kernels for KV of `dtype` are not there, once they are or after `patience_s`; empty when they are."""
    if compiled():
        return ""
    folder = os.environ.get(FOLDER)
    if not folder:
        return "nobody has compiled its kernels"
    ready, failed = Path(folder) / f"ready-{dtype}", Path(folder) / f"failed-{dtype}"
    until = time.monotonic() + patience_s
    while not ready.exists() and not failed.exists() and time.monotonic() < until:
        time.sleep(0.1)
    if failed.exists():
        return failed.read_text(encoding="utf-8")
    return "" if ready.exists() else "its kernels were not compiled in time"
