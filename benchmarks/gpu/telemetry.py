"""NVML and GPM, read through the store's own probe under a known load, beside what the load really moved."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from gpu.check import Check
from gpu.load import Load, copying
from gpu.rows import one_line
from probes.labels import NAME
from probes.series import SeriesStore
from probes.sources.nvml import NvmlSource
from probes.target import parse_target

PREFIX = "kvscope_nvml_"
AGREE = (0.8, 1.25)
"""What a rate by GPM over the one measured may be (policy): its window is not ours to the millisecond, and a PCIe link
carries headers, too."""
OURS = (0.4, 2.5)
"""Beyond this a unit is wrong, and that is a wrong number of ours: per cent for a share, MiB for MB, read for read and
written."""
_READINGS, _APART_S = 4, 0.7


@dataclass(frozen=True, slots=True)
class Reading:
    """Values by short name (without `kvscope_nvml_`) of torch's GPU; `began`, `ended`: monotonic seconds."""

    values: dict[str, float]
    states: dict[str, str]
    began: float
    ended: float


class Probe:
    """The target `nvml`, read as `kvtop` does."""

    def __init__(self, uuid: str) -> None:
        self._store = SeriesStore()
        self._source = NvmlSource(parse_target("nvml"), self._store)
        self._uuid = uuid

    def read(self) -> Reading:
        """One reading. Raises `RuntimeError` with the source's own words where there is none."""
        began = time.monotonic()
        status = self._source.collect_alone(now := time.time_ns() // 1_000_000)
        if status.state != "fresh":
            raise RuntimeError(status.error or status.state)
        fresh = {
            labels: found[1]
            for labels in self._store.series()
            if (found := self._store.latest(labels, now)) and found[0] == now
        }
        uuids = {uuid for labels in fresh if (uuid := labels.as_dict().get("UUID"))}
        ours = self._uuid if self._uuid in uuids or len(uuids) != 1 else uuids.pop()
        values: dict[str, float] = {}
        states: dict[str, str] = {}
        for labels, value in fresh.items():
            told = labels.as_dict()
            name = told[NAME].removeprefix(PREFIX)
            if told.get("UUID", ours) != ours:
                continue
            if name == "field_state":
                states[told.get("field", "")] = told.get("state", "")
            else:
                values.setdefault(name, value)
        return Reading(values, states, began, time.monotonic())

    def close(self) -> None:
        """End its process."""
        import asyncio

        asyncio.run(self._source.close())


def run(check: Check) -> None:
    device = torch.cuda.get_device_properties(0)
    probe = Probe(uuid_of(device))
    try:
        probe.read()  # starts the process; what needs two samples has its first
        dram(check, probe, device)
        pcie(check, probe)
    except (RuntimeError, OSError) as error:
        check.skipped("NVML", one_line(error))
    finally:
        probe.close()


def dram(check: Check, probe: Probe, device: object) -> None:
    """Copies within the device's memory: GPM's share of the peak against bytes read and written."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_(0, 256)
    target = torch.empty_like(source)
    with copying(source, target, 2 * source.nbytes) as load:
        readings = under(probe, load)
    last = readings[-1]
    rate = load.rate(readings[0].ended, last.began)
    check.measured("copy load, within the GPU", rate / 1e9, "GB/s", "read and written")
    for name, unit, scale in (
        ("utilization_ratio", "of the time", 1.0), ("memory_utilization_ratio", "of the time", 1.0),
        ("sm_clock_hertz", "MHz", 1e-6), ("memory_clock_hertz", "MHz", 1e-6), ("power_watts", "W", 1.0),
        ("temperature_celsius", "°C", 1.0), ("memory_used_bytes", "GB", 1e-9),
        ("gpm_sm_active_ratio", "of the time", 1.0),
    ):  # fmt: skip
        told(check, last, name, unit, scale)
    used = last.values.get("memory_used_bytes")
    if used is not None and used < 2 * source.nbytes:
        check.wrong_number("memory_used_bytes", "less than this process holds", used / 1e9, "GB")
    peak, whence = peak_of(device, last)
    share = told(check, last, "gpm_dram_bandwidth_ratio", "of the peak", 1.0)
    if share is not None and peak:
        compare(check, "DRAM traffic by GPM", share * peak, rate, f"peak {peak / 1e9:,.0f} GB/s {whence}")


def pcie(check: Check, probe: Probe) -> None:
    """Copies from pinned host memory: GPM's PCIe traffic against bytes copied."""
    source = torch.empty(256 << 20, dtype=torch.uint8).pin_memory()
    target = torch.empty_like(source, device="cuda")
    with copying(source, target, source.nbytes, copies=4) as load:
        readings = under(probe, load)
    rate = load.rate(readings[0].ended, readings[-1].began)
    check.measured("copy load, from the host", rate / 1e9, "GB/s", "pinned memory")
    seen = told(check, readings[-1], "pcie_receive_bytes_per_second", "GB/s", 1e-9)
    if seen is not None:
        compare(check, "PCIe traffic by GPM", seen, rate, "the link's own headers come on top")


def under(probe: Probe, load: Load) -> list[Reading]:
    """Some readings while it runs. Raises `RuntimeError` where it does not."""
    found = []
    for _ in range(_READINGS):
        time.sleep(_APART_S)
        found.append(probe.read())
    if load.error:
        raise RuntimeError(f"the load failed: {load.error}")
    return found


def told(check: Check, reading: Reading, name: str, unit: str, scale: float) -> float | None:
    """A row of one value; without it, why not."""
    value = reading.values.get(name)
    if value is None:
        check.skipped(name, f"NVML does not tell it: {reading.states.get(name, 'no state')}")
    else:
        check.measured(name, value * scale, unit)
    return value


def compare(check: Check, name: str, seen: float, moved: float, note: str) -> None:
    """A rate that the driver tells over the one that was measured."""
    if moved <= 0:
        check.skipped(name, "the load was too slow to be measured")
        return
    ratio = seen / moved
    note = f"{seen / 1e9:,.1f} GB/s told, {moved / 1e9:,.1f} moved; {note}"
    if not OURS[0] <= ratio <= OURS[1]:
        check.wrong_number(name, note, ratio, "of what was moved")
    else:
        check.within(name, ratio, "of what was moved", AGREE, note)


def peak_of(device: object, reading: Reading) -> tuple[float, str]:
    """Bytes a second that the memory can move in theory: twice a clock over its width, else by the vendor's table."""
    from kvstore.errors import BadRequest
    from kvstore.tune.cards import card_of

    width = getattr(device, "memory_bus_width", 0)
    clock = reading.values.get("memory_clock_max_hertz") or 1e3 * getattr(device, "memory_clock_rate", 0)
    if width and clock:
        return 2.0 * clock * width / 8, f"by clock and {width} bits"
    try:
        return card_of(str(getattr(device, "name", "")).removeprefix("NVIDIA ")).bytes_per_s, "by the vendor's table"
    except BadRequest:
        return 0.0, ""


def uuid_of(device: object) -> str:
    """As NVML writes it. torch tells it without the prefix."""
    told = str(getattr(device, "uuid", ""))
    return told if told.startswith(("GPU-", "MIG-")) else f"GPU-{told}"
