"""What the stub library (`stub.c`) is told to say: machines with an H100, an A100, a B200, as their drivers answer."""

from __future__ import annotations

from pathlib import Path

GIB = 1 << 30
Lines = dict[str, object]


def _every_gpu() -> Lines:
    """What all of them answer; figures differ from each other, so that none can be taken for another."""
    lines: Lines = {
        "SystemGetDriverVersion": "580.65.06",
        "DeviceGetCount": 1,
        "DeviceGetUUID": "GPU-0000",
        "DeviceGetMinorNumber": 0,
        "DeviceGetPciInfo": "00000000:18:00.0",
        "memory.total": 80 * GIB,
        "memory.reserved": 1 * GIB,
        "memory.used": 70 * GIB,
        "memory.free": 9 * GIB,
        "DeviceGetUtilizationRates.0": 97,
        "DeviceGetUtilizationRates.1": 41,
        "DeviceGetPerformanceState": 0,
        "DeviceGetClockInfo.1": 1755,
        "DeviceGetClockInfo.2": 2619,
        "DeviceGetMaxClockInfo.1": 1980,
        "DeviceGetMaxClockInfo.2": 2619,
        "DeviceGetCurrentClocksEventReasons": 0x4,
        "DeviceGetPowerUsage": 695_500,
        "DeviceGetEnforcedPowerLimit": 700_000,
        "DeviceGetTotalEnergyConsumption": 123_456_789,
        "DeviceGetTemperatureV.0": 61,
        "field.82": 78,
        "DeviceGetCurrPcieLinkGeneration": 5,
        "DeviceGetMaxPcieLinkGeneration": 5,
        "DeviceGetCurrPcieLinkWidth": 16,
        "DeviceGetMaxPcieLinkWidth": 16,
        "DeviceGetPcieReplayCounter": 3,
        "DeviceGetSupportedEventTypes": 0x1F,
        "DeviceGetMigMode": 0,
        "field.91": 2,
        "DeviceGetNvLinkState": 1,
    }
    lines |= {f"DeviceGetViolationStatus.{policy}": (policy + 1) * 10**9 for policy in range(6)}
    lines |= {f"DeviceGetTotalEccErrors.{kind}.{counter}": 10 * kind + counter for kind in (0, 1) for counter in (0, 1)}
    lines |= {f"DeviceGetRemappedRows.{place}": value for place, value in enumerate((5, 2, 1, 0))}
    return lines


def _nvlink_4(speed: Lines) -> Lines:
    """Two links that count in the old way: link 1 has errors."""
    lines: Lines = {f"DeviceGetNvLinkErrorCounter.{kind}": 0 for kind in range(5)}
    lines |= {"DeviceGetNvLinkErrorCounter.0.1": 7, "DeviceGetNvLinkErrorCounter.2.1": 900}
    lines |= {"field.138.0": 1000, "field.138.1": 2000, "field.139.0": 3000, "field.139.1": 4000}
    return lines | speed


def h100() -> Lines:
    gpm = {1: 98.5, 2: 88.25, 3: 33.5, 5: 12.5, 10: 91.75, 20: 1024.0, 21: 2048.0, 60: 4096.0, 61: 8192.0}
    lines = _every_gpu() | _nvlink_4({"field.164": 26562}) | {"DeviceGetName": "NVIDIA H100 80GB HBM3"}
    lines |= {"GpmQueryDeviceSupport": 1, "DeviceGetMarginTemperature": 26}
    lines |= {f"gpm.{metric}": value for metric, value in gpm.items()}
    lines |= {f"field.{field}": field for field in range(173, 184)}
    return lines | {"field.269": 4 * 10**9, "field.270": 5 * 10**9, "field.271": 6 * 10**9}


def a100() -> Lines:
    """No GPM, one speed for all links, a temperature threshold instead of a margin."""
    lines = _every_gpu() | _nvlink_4({"field.90": 25781}) | {"DeviceGetName": "NVIDIA A100-SXM4-80GB"}
    lines |= {"GpmQueryDeviceSupport": 0, "DeviceGetTemperatureThreshold.1": 92}
    lines |= {"DeviceGetCurrPcieLinkGeneration": 4, "DeviceGetMaxPcieLinkGeneration": 4}
    return lines | {"DeviceGetPcieThroughput.0": 1500, "DeviceGetPcieThroughput.1": 2500}


def b200() -> Lines:
    """NVLink 5 counts in fields of its own."""
    lines = h100() | {"DeviceGetName": "NVIDIA B200", "field.164": 53125}
    for key in [key for key in lines if key.startswith(("DeviceGetNvLinkErrorCounter", "field.138", "field.139"))]:
        del lines[key]
    lines |= {f"field.{field}": 0 for field in (206, 207, 208, 211, 214, 215, 219)}
    return lines | {"field.215.1": 4, "field.202": 111, "field.204": 222}


def mig() -> Lines:
    """An A100 in seven slices' mode: two GPU instances, the first of them with two compute instances."""
    lines = h100() | {"DeviceGetMigMode": 1, "DeviceGetMaxMigDeviceCount": 7}
    lines |= {"MigInstance.0": 1, "MigInstance.1": 1, "MigInstance.3": 5, "MigGetName": "NVIDIA H100 MIG 3g.40gb"}
    for instance, used in ((1, 10), (5, 20)):
        lines |= {f"memory.total.{instance}": 40 * GIB, f"memory.used.{instance}": used * GIB}
        lines |= {f"memory.free.{instance}": (39 - used) * GIB, f"memory.reserved.{instance}": GIB}
        lines |= {f"gpm.10.{instance}": used}
    for metric in ("DeviceGetUtilizationRates.0", "DeviceGetUtilizationRates.1"):
        del lines[metric]
    return lines


class Machine:
    """The text file that the stub reads; a change holds from the next call on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "nvml.txt"
        self.lines: Lines = {}

    def set(self, lines: Lines | None = None, **more: object) -> None:
        """Everything anew (``lines``), then single changes; None takes a line out. Words with dots need ``lines``."""
        if lines is not None:
            self.lines = dict(lines)
        self.change(dict(more))

    def change(self, lines: Lines) -> None:
        self.lines = {key: value for key, value in (self.lines | lines).items() if value is not None}
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(f"{key} {value}\n" for key, value in self.lines.items()), errors="surrogateescape")
        fresh.replace(self.path)
