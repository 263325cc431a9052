"""A machine with GPUs of which only the driver's library is not real: `stub.c`, compiled here."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.probes.nvml.machines import Machine


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stub library."""
    if importlib.util.find_spec("pynvml") is None:
        pytest.skip("nvidia-ml-py is not installed (kvscope[nvml])")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here, so no NVML to ask")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("stub.c")
    words = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Werror",
        "-o",
        str(folder / "libnvidia-ml.so.1"),
        str(source),
    ]
    subprocess.run(words, check=True, timeout=60)
    return folder


@pytest.fixture
def machine(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    path = os.pathsep.join(part for part in (str(library), os.environ.get("LD_LIBRARY_PATH")) if part)
    monkeypatch.setenv("LD_LIBRARY_PATH", path)
    monkeypatch.setenv("KVSCOPE_NVML_STUB", str(made.path))
    return made
