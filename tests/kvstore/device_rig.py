"""Devices to test with: `shm`, and CUDA of which only the runtime's library is not real (`cudart_stub.c`)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvstore.transport.device import memory, runtime

SOURCE = Path(__file__).with_name("cudart_stub.c")


class Stub:
    """The folder by which a stub is told what to do, and says what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def set(self, name: str, value: object) -> None:
        (self.folder / name).write_text(f"{value}\n")

    def unset(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def calls(self, pid: int | None = None) -> list[str]:
        """Names of the calls so far, of one process or of all, in order."""
        return [name for who, _, name in self._lines() if pid in (None, who)]

    def counts(self, pid: int | None = None) -> Counter[str]:
        return Counter(self.calls(pid))

    def devices_of(self, call: str, pid: int | None = None) -> set[int]:
        """Which devices were current when it was made."""
        return {device for who, device, name in self._lines() if name == call and pid in (None, who)}

    def _lines(self) -> list[tuple[int, int, str]]:
        path = self.folder / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(pid), int(device), name) for pid, device, name in (line.split() for line in lines)]


def compiled(folder: Path) -> Path:
    """The stub library; skips the test where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here, so no CUDA runtime to call")
    library = folder / "libcudart.so.12"
    words = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(SOURCE), "-lpthread"]
    subprocess.run(words, check=True, timeout=60)
    return library


@contextmanager
def stubbed(library: Path, folder: Path) -> Iterator[Stub]:
    """CUDA is the stub, in this process and in those that it starts."""
    folder.mkdir(exist_ok=True)
    before = {name: os.environ.get(name) for name in (runtime.LIBRARY, "KVSTORE_CUDA_STUB")}
    os.environ.update({runtime.LIBRARY: str(library), "KVSTORE_CUDA_STUB": str(folder)})
    forget_devices()
    try:
        yield Stub(folder)
    finally:
        forget_devices()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def forget_devices() -> None:
    """What this process knows of devices."""
    runtime._found = None
    memory._devices.clear()
