"""A machine with GPUs of which only the driver's library is not real: `stub.c`, compiled here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.nvml_rig import compiled
from tests.probes.nvml.machines import Machine


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stub library."""
    return compiled(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    path = os.pathsep.join(part for part in (str(library), os.environ.get("LD_LIBRARY_PATH")) if part)
    monkeypatch.setenv("LD_LIBRARY_PATH", path)
    monkeypatch.setenv("KVSCOPE_NVML_STUB", str(made.path))
    return made
