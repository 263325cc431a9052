"""One device: what it is, and everything that it says in one reading."""

from __future__ import annotations

import time
from typing import Any

from probes.nvml import board, health, links, processes
from probes.nvml.asker import Asker, Reply
from probes.nvml.faults import NO_ANSWER, DeviceLostError, FieldState
from probes.nvml.gpm import Gpm
from probes.nvml.health import Xids
from probes.nvml.names import PREFIX
from probes.nvml.samples import Samples
from probes.pagetext import PageText

_MIG_MOST = 16
SELDOM_S = 10.0
"""Limits, links, ECC errors, rows: asked this seldom and told again in between (policy). Eighteen links with five error
counts each are ninety calls into the driver, which a second's rhythm is not worth."""


class Gpu:
    """One device. Labels are spelled as dcgm-exporter spells them."""

    def __init__(self, nvml: Any, index: int, handle: Any, host: str) -> None:
        self._nvml = nvml
        self.index = index
        self.ask = Asker(nvml, handle)
        self._seldom = Asker(nvml, handle)
        self._told: Samples | None = None
        self._told_s = 0.0
        self._gpm = Gpm(nvml, handle)
        self._instances: dict[int, tuple[Asker, Gpm]] = {}
        self._without: dict[str, FieldState] = {}
        self.labels = self._labels(host)
        self.words = ""
        """A remark on the latest reading: that the device is lost, or what a container hides."""

    def _labels(self, host: str) -> dict[str, str]:
        """``_without`` keeps which of them the driver did not tell, and why."""
        ask = self.ask
        told = {
            "UUID": ask.reply("nvmlDeviceGetUUID"),
            "pci_bus_id": _bus(ask.reply("nvmlDeviceGetPciInfo")),
            "device": ask.reply("nvmlDeviceGetMinorNumber"),
            "modelName": ask.reply("nvmlDeviceGetName"),
        }
        self._without = {label: state for label, (_, state) in told.items() if state is not None}
        labels = {label: str(value) for label, (value, state) in told.items() if state is None and value != ""}
        if "device" in labels:
            labels["device"] = f"nvidia{labels['device']}"
        return {"gpu": str(self.index), **labels, "Hostname": host}

    def read(self, page: PageText, xids: Xids) -> bool:
        """Put the device on a page; False when it is lost: all its series but one end. Raises ``DriverGoneError``."""
        out = Samples()
        self.words = ""
        self.ask.begin()
        try:
            self._read(out, xids)
            out.take(self._seldom_read(), {})
        except DeviceLostError as lost:
            self.words, self._told = str(lost), None
            page.add(f"{PREFIX}lost", "gauge", self.labels, 1)
            return False
        out.add("lost", 0)
        out.write(page, self.labels)
        for field, state in {**self._without, **self._seldom.missing, **self.ask.missing}.items():
            page.add(f"{PREFIX}field_state", "gauge", self.labels | {"field": field, "state": state}, 1)
        return True

    def _read(self, out: Samples, xids: Xids) -> None:
        ask = self.ask
        for part in (board.use, board.memory, board.clocks, board.power_and_heat, board.pcie):
            part(ask, out)
        if self._gpm.supported(ask):
            self._gpm.read(ask, out)
        else:
            board.pcie_sampled(ask, out)
        xids.tell(ask, out)
        self.words = processes.read(ask, out, out.value("memory_used_bytes"))
        self._mig(out)

    def _seldom_read(self) -> Samples:
        """What is asked seldom: anew when it is time, else as it was."""
        now = time.monotonic()
        if self._told is None or now - self._told_s >= SELDOM_S:
            told = Samples()
            self._seldom.begin()
            for part in (board.limits, board.pcie_errors, links.read, health.ecc, health.remapped_rows):
                part(self._seldom, told)
            self._told, self._told_s = told, now
        return self._told

    def _mig(self, out: Samples) -> None:
        """The GPU instances: memory and GPM of each, under labels of its own."""
        mode = self.ask.ask("mig_enabled", "nvmlDeviceGetMigMode")
        if mode is None:
            return
        out.add("mig_enabled", self.ask.checked("mig_enabled", mode[0], most=1))
        if mode[0] != 1:
            self._instances.clear()
            return
        seen: set[int] = set()
        for place in range(min(self.ask.reply("nvmlDeviceGetMaxMigDeviceCount").value or 0, _MIG_MOST)):
            handle = self.ask.reply("nvmlDeviceGetMigDeviceHandleByIndex", place).value
            if handle is not None:
                self._instance(Asker(self._nvml, handle), seen, out)
        self._instances = {number: kept for number, kept in self._instances.items() if number in seen}

    def _instance(self, ask: Asker, seen: set[int], out: Samples) -> None:
        number = ask.reply("nvmlDeviceGetGpuInstanceId").value
        if number is None or number in seen:  # several compute instances share a GPU instance's memory
            return
        seen.add(number)
        ask, gpm = self._instances.setdefault(number, (ask, Gpm(self._nvml, self.ask.handle, number)))
        ask.begin()
        name = ask.reply("nvmlDeviceGetName").value or ""
        own = Samples()
        board.memory(ask, own)
        gpm.read(ask, own)
        profile = name.rpartition("MIG ")[2] if "MIG " in name else ""
        out.take(own, {"GPU_I_ID": str(number)} | ({"GPU_I_PROFILE": profile} if profile else {}))


def _bus(told: Reply) -> Reply:
    """Of an answer about PCI its bus id, which nvidia-ml-py decodes only now."""
    try:
        return told if told.state is not None else Reply(told.value.busId, None)
    except NO_ANSWER:
        return Reply(None, "failed")
