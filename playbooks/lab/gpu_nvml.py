"""A node whose devices kvscope's own target `nvml` tells of, instead of dcgm-exporter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .exposition import Family, LabelPairs, merged
from .gpu import NVLINK_ERRORS, DeviceDetail
from .hardware import Gpu

RATIOS = {
    "utilization_ratio": ("GPU_UTIL", 0.01),
    "memory_utilization_ratio": ("MEM_COPY_UTIL", 0.01),
    "gpm_graphics_active_ratio": ("GR_ENGINE_ACTIVE", 1.0),
    "gpm_tensor_active_ratio": ("PIPE_TENSOR_ACTIVE", 1.0),
    "gpm_dram_bandwidth_ratio": ("DRAM_ACTIVE", 1.0),
    "power_watts": ("POWER_USAGE", 1.0),
    "temperature_celsius": ("GPU_TEMP", 1.0),
    "sm_clock_hertz": ("SM_CLOCK", 1e6),
    "memory_clock_hertz": ("MEM_CLOCK", 1e6),
    "memory_used_bytes": ("FB_USED", 2.0**20),
    "memory_free_bytes": ("FB_FREE", 2.0**20),
    "pcie_receive_bytes_per_second": ("PCIE_RX_BYTES", 1.0),
    "pcie_transmit_bytes_per_second": ("PCIE_TX_BYTES", 1.0),
    "xid_last": ("XID_ERRORS", 1.0),
}
"""Gauges of the target by DCGM's name for the same, with the factor to its unit."""


@dataclass
class NvmlTarget:
    """The target on one node; ``devices`` are its detailed GPUs, which it takes away from dcgm-exporter."""

    node: str
    devices: Sequence[DeviceDetail]

    def __post_init__(self) -> None:
        self.target: LabelPairs = (("instance", self.node), ("job", "nvml"))
        for device in self.devices:
            device.gpu.dcgm = False

    def observe(self, seconds: float) -> None:
        """The engines' fleet observes the devices."""

    def families(self) -> list[Family]:
        by_name: dict[str, Family] = {}
        for device in self.devices:
            for family in _device(device, _labels(device.gpu)):
                known = by_name.setdefault(family.name, family)
                if known is not family:
                    known.samples += family.samples
        return [Family("up", "gauge", "1 when the source answered.").one(1.0), *by_name.values()]


def _labels(gpu: Gpu) -> LabelPairs:
    return merged(gpu.labels, ("device", f"nvidia{gpu.index}"), ("pci_bus_id", f"00000000:{gpu.index + 0x18:02X}:00.0"))


def _device(device: DeviceDetail, labels: LabelPairs) -> list[Family]:
    gpu, pcie = device.gpu, device.pcie
    gauges = {name: gpu.gauge(field) * factor for name, (field, factor) in RATIOS.items()}
    gauges |= {
        "sm_clock_max_hertz": gpu.model.sm_clock * 1e6, "clock_event_reasons": device.reasons_now,
        "power_limit_watts": device.power_limit, "pcie_link_generation": device.generation,
        "pcie_link_generation_max": pcie.generation_max, "pcie_link_lanes": pcie.lanes,
        "pcie_link_lanes_max": pcie.lanes_max, "lost": 0.0,
    }  # fmt: skip
    found = [Family(f"kvscope_nvml_{name}", "gauge", name).one(float(value), labels) for name, value in gauges.items()]
    found.append(Family("kvscope_nvml_pcie_replays", "counter", "Sent again").one(device.counted("replays"), labels))
    held = {kind: device.counted(kind) * 1e-9 for kind in ("power", "thermal")}
    found.append(Family("kvscope_nvml_clock_violation_seconds", "counter", "Held down").split("reason", held, labels))
    return [*found, *_links(device, labels)]


def _links(device: DeviceDetail, labels: LabelPairs) -> list[Family]:
    """Errors and state of every NVLink port."""
    nvlink = device.nvlink
    if nvlink is None:
        return []
    errors = Family("kvscope_nvml_nvlink_errors", "counter", "Errors of a link")
    up = Family("kvscope_nvml_nvlink_up", "gauge", "1 while the link is active")
    for link in range(nvlink.count):
        of = merged(labels, ("link", str(link)))
        up.one(1.0, of)
        errors.split("error", {kind: float(nvlink.counted[link, kind]) for kind in NVLINK_ERRORS}, of)
    found = [errors, up]
    for direction in ("receive", "transmit"):
        moved = round(nvlink.moves * abs(device.rng.gauss(1.0, 0.05)))
        name = f"kvscope_nvml_nvlink_{direction}_bytes_per_second"
        found.append(Family(name, "gauge", "Rate of all links").one(float(moved), labels))
    return found
