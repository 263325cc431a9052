"""All devices of the driver, read again and again: what the child process does."""

from __future__ import annotations

import importlib
import socket
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from probes.nvml.faults import NO_ANSWER, NO_GPU, NO_PACKAGE, DeviceLostError, DriverGoneError, driver_gone, said
from probes.nvml.gpu import Gpu
from probes.nvml.health import Xids
from probes.nvml.names import HELP, PREFIX
from probes.pagetext import PageText


@dataclass(slots=True)
class Answer:
    """One reading as it goes to the parent: a page, or ``state`` and ``error`` that say why there is none.

    ``remarks`` are words on single devices; ``ends`` that the process gives up and wants to be started anew.
    """

    page: str = ""
    state: str = ""
    error: str = ""
    remarks: list[str] = field(default_factory=list)
    gpus: int = 0
    ends: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Monitor:
    """NVML, initialised at the first reading."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._gpus: list[Gpu] = []
        self._xids: Xids | None = None
        self._refused: list[str] = []
        self._info: dict[str, str] = {}

    def read(self) -> Answer:
        """One reading of all devices; never raises for what a driver does."""
        try:
            if self._nvml is None:
                self._start()
            return self._read()
        except DriverGoneError as gone:
            return Answer(state=gone.state, error=gone.words, ends=True)

    def _start(self) -> None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            raise DriverGoneError("unsupported", NO_PACKAGE) from None
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise driver_gone(int(error.value), said(error)) from None
        if count == 0:
            raise DriverGoneError("unsupported", NO_GPU)
        self._nvml, self._xids = nvml, Xids(nvml)
        self._info = {"version": self._version(), "package": str(getattr(nvml, "__version__", ""))}
        host = socket.gethostname()
        for index in range(count):
            self._add(index, host)
        if not self._gpus:
            raise DriverGoneError("no-permission", "; ".join(self._refused))

    def _version(self) -> str:
        try:
            return str(self._nvml.nvmlSystemGetDriverVersion())
        except (self._nvml.NVMLError, *NO_ANSWER):
            return ""

    def _add(self, index: int, host: str) -> None:
        assert self._xids is not None
        try:
            gpu = Gpu(self._nvml, index, self._nvml.nvmlDeviceGetHandleByIndex(index), host)
            self._xids.listen(gpu.ask)
        except self._nvml.NVMLError as error:
            self._refused.append(f"GPU {index} cannot be asked: {said(error)}")
        except DeviceLostError as lost:
            self._refused.append(f"GPU {index}: {lost}")
        else:
            self._gpus.append(gpu)

    def _read(self) -> Answer:
        assert self._xids is not None
        page, start = PageText(HELP), time.monotonic()
        self._xids.take()
        answering = sum(gpu.read(page, self._xids) for gpu in self._gpus)
        remarks = [*self._refused, *(f"GPU {gpu.index}: {gpu.words}" for gpu in self._gpus if gpu.words)]
        page.add(f"{PREFIX}driver_info", "gauge", {k: v for k, v in self._info.items() if v}, 1)
        page.add(f"{PREFIX}reading_seconds", "gauge", {}, time.monotonic() - start)
        return Answer(page.text().decode(), remarks=remarks, gpus=answering)
