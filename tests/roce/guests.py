"""Two QEMU guests with Soft-RoCE between them, under plain emulation, and jobs that run in them."""

from __future__ import annotations

import compileall
import io
import py_compile
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.roce.image import GUEST, Image

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("kvstore", "probes", "playbooks", "exporters", "tui")
ROLES = ("a", "b")
ADDRESS = {"a": "10.9.0.1", "b": "10.9.0.2"}
BOOT_S = 600.0
"""A guest is up in 15 s on an idle machine; emulation on a busy one takes many times that."""


class GuestError(Exception):
    """A guest did not do what it should: which, and where its console is."""


@dataclass(frozen=True)
class Job:
    """A script that runs in a guest; its output comes back into ``folder``."""

    role: str
    name: str
    folder: Path

    @property
    def rc(self) -> int | None:
        path = self.folder / f"{self.name}.rc"
        return int(path.read_text()) if path.exists() else None

    @property
    def out(self) -> str:
        return (self.folder / f"{self.name}.out").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self.folder / f"{self.name}.err").read_text(errors="replace")

    def wait(self, seconds: float) -> Job:
        """Until it has ended well. Raises ``GuestError`` with its last words."""
        end = time.monotonic() + seconds
        while self.rc is None:
            if time.monotonic() > end:
                raise GuestError(
                    f"job {self.name} in guest {self.role} has not ended after {seconds:g} s\n{self.tail()}"
                )
            time.sleep(0.2)
        if self.rc:
            raise GuestError(f"job {self.name} in guest {self.role} ended with {self.rc}\n{self.tail()}")
        return self

    def tail(self) -> str:
        shown = [self.folder / f"{self.name}.{kind}" for kind in ("out", "err")]
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in shown if path.exists())


class Guests:
    """A context manager: boots both guests of an image, and stops them. What they write lies in ``folder/{a,b}``."""

    def __init__(self, image: Image, folder: Path, memory_mb: int = 1536) -> None:
        self.image, self.folder, self.memory_mb = image, folder, memory_mb
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._numbers = 0

    def __enter__(self) -> Guests:
        self._sockets = Path(tempfile.mkdtemp(prefix="kvscope-roce-"))
        control = self.folder / "ctl"
        for role in ROLES:
            (control / "jobs" / role).mkdir(parents=True, exist_ok=True)
            (self.folder / role).mkdir(exist_ok=True)
        shutil.copy(GUEST / "init.sh", control / "init.sh")
        shutil.copytree(Path(__file__).parent / "work", control / "work", dirs_exist_ok=True)
        (control / "source.tar").write_bytes(source())
        try:
            wire = self._sockets / "wire"
            self._boot("a", f"stream,id=n0,server=on,addr.type=unix,addr.path={wire}")
            _until(wire.exists, 30, "the first guest's end of the wire")
            self._boot("b", f"stream,id=n0,server=off,addr.type=unix,addr.path={wire}")
            for role in ROLES:
                self._until_up(role)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        (self.folder / "ctl" / "stop").touch()
        end = time.monotonic() + 30
        for process in self._processes.values():
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def job(self, role: str, script: str, name: str = "") -> Job:
        """Start a shell script in a guest."""
        self._numbers += 1
        name = f"{self._numbers:03d}{'-' + name if name else ''}"
        path = self.folder / "ctl" / "jobs" / role / f"{name}.sh"
        path.with_suffix(".part").write_text(script + "\n")
        path.with_suffix(".part").rename(path)
        return Job(role, name, self.folder / role)

    def call(self, role: str, script: str, seconds: float = 60.0) -> str:
        """Run a shell script in a guest; what it printed."""
        return self.job(role, script).wait(seconds).out

    def cable(self, role: str, plugged: bool) -> None:
        """Pull a guest's cable, or put it back: the carrier, as QEMU's monitor sets it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as monitor:
            monitor.settimeout(10)
            monitor.connect(str(self._sockets / f"monitor-{role}"))
            monitor.recv(4096)
            monitor.sendall(f"set_link n0 {'on' if plugged else 'off'}\n".encode())
            time.sleep(0.2)
            monitor.recv(4096)

    def _boot(self, role: str, wire: str) -> None:
        shared = []
        for tag, path in (("ctl", self.folder / "ctl"), ("out", self.folder / role)):
            shared += ["-virtfs", f"local,path={path},mount_tag={tag},security_model=none,id={tag}"]
        append = f"root=/dev/vda rw console=ttyS0 init=/opt/entry.sh quiet kvscope.role={role}"
        append += " mitigations=off net.ifnames=0 nowatchdog"
        command = ["nice", "-n", "10", "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1"]
        command += ["-m", str(self.memory_mb), "-kernel", str(self.image.kernel), "-initrd", str(self.image.initrd)]
        command += ["-append", append, "-drive", f"file={self.image.disk},format=raw,if=virtio,snapshot=on"]
        mac = f"52:54:00:0a:09:0{ROLES.index(role) + 1}"
        command += ["-netdev", wire, "-device", f"virtio-net-pci,netdev=n0,romfile=,mac={mac},host_mtu=1500"]
        command += [*shared, "-display", "none", "-serial", "stdio", "-no-reboot"]
        command += ["-monitor", f"unix:{self._sockets / f'monitor-{role}'},server=on,wait=off"]
        with (self.folder / f"{role}.console").open("wb") as console:
            self._processes[role] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT
            )

    def _until_up(self, role: str) -> None:
        console = self.folder / f"{role}.console"

        def up() -> bool:
            if self._processes[role].poll() is not None:
                raise GuestError(f"guest {role} ended while it booted: {console.read_text(errors='replace')[-500:]}")
            return (self.folder / role / "up").exists()

        _until(up, BOOT_S, f"guest {role} up ({console})")


def source() -> bytes:
    """The repository's packages as a tar, compiled where this Python is of the guests' version (of another the compiled
    files are not looked at)."""
    data = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=data, mode="w") as archive:
        for room in ROOMS:
            shutil.copytree(ROOT / room, Path(folder) / room, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(
            folder, quiet=2, stripdir=folder, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
        )
        archive.add(folder, ".")
    return data.getvalue()


def _until(true: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise GuestError(f"not seen within {seconds:g} s: {what}")
        time.sleep(0.1)
