"""What NVML's numbers are called here, and the numbers themselves (nvml.h, which never renumbers)."""

from __future__ import annotations

PREFIX = "kvscope_nvml_"

REASONS = {
    0x001: "idle",
    0x002: "user_clocks",
    0x004: "software_power_cap",
    0x008: "hardware_slowdown",
    0x010: "sync_boost",
    0x020: "software_thermal",
    0x040: "hardware_thermal",
    0x080: "hardware_power_brake",
    0x100: "display_clocks",
}
"""nvmlClocksEventReason…: bit → our word."""

VIOLATIONS = {
    0: ("power", 74),
    1: ("thermal", 75),
    2: ("sync_boost", 76),
    3: ("board_limit", 77),
    4: ("low_utilization", 78),
    5: ("reliability", 79),
}
"""NVML_PERF_POLICY_… → our word, and the field NVML_FI_DEV_PERF_POLICY_… that tells the same time in newer drivers."""
EVENT_TIMES = {269: "software_thermal", 270: "hardware_thermal", 271: "hardware_power_brake"}
"""NVML_FI_DEV_CLOCKS_EVENT_REASON_…, in ns, from R570 on."""

MEMORY_TEMPERATURE = 82
LINK_COUNT = 91
LINK_SPEED_COMMON = 90
LINK_SPEED = 164
"""NVML_FI_DEV_NVLINK_GET_SPEED of one link, and …_SPEED_MBPS_COMMON of all of them, in MB/s."""
LINK_DATA = {138: "transmit", 139: "receive"}
"""NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_…: a link's count in KiB, without protocol."""
LINK_BYTES = {202: "transmit", 204: "receive"}
"""NVML_FI_DEV_NVLINK_COUNT_…_BYTES: the same in bytes, from NVLink 5 on."""
LINK_ERRORS = {0: "replay", 1: "recovery", 2: "crc_flit", 3: "crc_data", 4: "ecc_data"}
"""NVML_NVLINK_ERROR_DL_…: up to NVLink 4."""
LINK_COUNTS = {
    206: "malformed",
    207: "buffer_overrun",
    208: "receive",
    211: "integrity",
    214: "recovery_failed",
    215: "recovery",
    219: "effective",
}
"""NVML_FI_DEV_NVLINK_COUNT_…: from NVLink 5 on."""
PCIE_ERRORS = {
    173: "correctable",
    174: "naks_received",
    175: "receiver",
    176: "bad_tlp",
    177: "naks_sent",
    178: "bad_dllp",
    179: "non_fatal",
    180: "fatal",
    181: "unsupported_request",
    182: "lcrc",
    183: "lane",
}
"""NVML_FI_DEV_PCIE_COUNT_…"""

_HELP = {
    "utilization_ratio": "Share of the last sample period in which some kernel ran.",
    "memory_utilization_ratio": "Share of the last sample period in which the memory controller was busy.",
    "memory_total_bytes": "Device memory.",
    "memory_used_bytes": "Device memory in use, without what is reserved.",
    "memory_free_bytes": "Device memory that can be had.",
    "memory_reserved_bytes": "Device memory that driver and firmware keep.",
    "process_memory_bytes": "Device memory of a compute process, by the driver's process id.",
    "sm_clock_hertz": "SM clock.",
    "sm_clock_max_hertz": "Highest SM clock that the device supports.",
    "memory_clock_hertz": "Memory clock.",
    "memory_clock_max_hertz": "Highest memory clock that the device supports.",
    "performance_state": "Performance state, 0 the fastest.",
    "clock_event_reasons": "Bits of nvmlClocksEventReason… that hold the clocks.",
    "clock_event_active": "1 while this reason holds the clocks.",
    "clock_violation_seconds_total": "Time for which the clocks were held, by reason; reasons overlap.",
    "power_watts": "Power draw.",
    "power_limit_watts": "Power limit that the driver enforces.",
    "energy_joules_total": "Energy used since the driver was loaded.",
    "temperature_celsius": "Temperature of the device.",
    "memory_temperature_celsius": "Temperature of the device memory.",
    "slowdown_temperature_celsius": "Temperature from which on the hardware slows down.",
    "temperature_margin_celsius": "Degrees left to the nearest slow-down threshold.",
    "pcie_receive_bytes_per_second": "PCIe bytes into the device: GPM between two readings, else a sample of 20 ms.",
    "pcie_transmit_bytes_per_second": "PCIe bytes out of the device: GPM between two readings, else a sample of 20 ms.",
    "pcie_replays_total": "PCIe packets sent again.",
    "pcie_errors_total": "Errors on the PCIe link, by kind.",
    "pcie_link_generation": "PCIe generation that the link runs at.",
    "pcie_link_generation_max": "PCIe generation that device and slot could run at.",
    "pcie_link_lanes": "PCIe lanes in use.",
    "pcie_link_lanes_max": "PCIe lanes that device and slot could use.",
    "nvlink_up": "1 while the link is active.",
    "nvlink_rate_bytes_per_second": "Rate of the link in each direction.",
    "nvlink_receive_bytes_total": "Data into the device over the link.",
    "nvlink_transmit_bytes_total": "Data out of the device over the link.",
    "nvlink_errors_total": "Errors on the link, by kind.",
    "nvlink_receive_bytes_per_second": "NVLink bytes into the device over all links (GPM).",
    "nvlink_transmit_bytes_per_second": "NVLink bytes out of the device over all links (GPM).",
    "gpm_graphics_active_ratio": "Share of time in which a compute or graphics context was active (GPM).",
    "gpm_sm_active_ratio": "Share of SMs that were busy (GPM).",
    "gpm_sm_occupancy_ratio": "Active warps over the most there can be (GPM).",
    "gpm_tensor_active_ratio": "Share of time in which SMs did tensor operations (GPM).",
    "gpm_dram_bandwidth_ratio": "Device memory bandwidth in use over the theoretical maximum (GPM).",
    "ecc_errors_total": "ECC errors, by kind and by what they are counted since.",
    "remapped_rows_total": "Rows of the device memory replaced by spare ones, by kind of error.",
    "row_remap_pending": "1 while a row waits for a reset of the device.",
    "row_remap_failed": "1 when a row could not be replaced.",
    "xid_last": "Code of the last Xid error since this process began to listen, 0 for none.",
    "xid_errors_total": "Xid errors since this process began to listen, by code.",
    "mig_enabled": "1 while the device is partitioned.",
    "lost": "1 when the driver says that the device is lost.",
    "field_state": "1; what the driver did not tell of this device, and why.",
    "driver_info": "1; the driver's version.",
    "reading_seconds": "Time that the latest reading of all devices took.",
}
HELP = {PREFIX + name: text for name, text in _HELP.items()}
