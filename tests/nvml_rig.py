"""NVML of which only the driver's library is not real: a stub in C, compiled where it is needed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

DRIVER = Path(__file__).parent / "probes" / "nvml" / "stub.c"
"""Says of its devices what `tests.probes.nvml.machines.Machine` writes down."""


def compiled(folder: Path, source: Path = DRIVER) -> Path:
    """`folder`, with `libnvidia-ml.so.1` in it; skips the test without nvidia-ml-py, or without a C compiler."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed (extra nvml)")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here, so no NVML to ask")
    library = folder / "libnvidia-ml.so.1"
    words = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(source)]
    subprocess.run(words, check=True, timeout=60)
    return folder
