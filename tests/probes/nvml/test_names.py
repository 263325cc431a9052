"""The numbers that NVML is asked by are those of nvidia-ml-py, and everything on a page has a help text."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from probes.nvml import gpm, names
from probes.nvml.monitor import Monitor
from probes.rules import RuleSet
from tests.probes.nvml import machines
from tests.probes.nvml.machines import Machine

FIELDS: dict[int, str] = {
    names.MEMORY_TEMPERATURE: "MEMORY_TEMP",
    names.LINK_COUNT: "NVLINK_LINK_COUNT",
    names.LINK_SPEED_COMMON: "NVLINK_SPEED_MBPS_COMMON",
    names.LINK_SPEED: "NVLINK_GET_SPEED",
    **{field: f"PERF_POLICY_{reason.upper()}" for reason, field in names.VIOLATIONS.values()},
    269: "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    270: "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    271: "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
    138: "NVLINK_THROUGHPUT_DATA_TX",
    139: "NVLINK_THROUGHPUT_DATA_RX",
    202: "NVLINK_COUNT_XMIT_BYTES",
    204: "NVLINK_COUNT_RCV_BYTES",
    206: "NVLINK_COUNT_MALFORMED_PACKET_ERRORS",
    207: "NVLINK_COUNT_BUFFER_OVERRUN_ERRORS",
    208: "NVLINK_COUNT_RCV_ERRORS",
    211: "NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",
    214: "NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",
    215: "NVLINK_COUNT_LINK_RECOVERY_EVENTS",
    219: "NVLINK_COUNT_EFFECTIVE_ERRORS",
    173: "PCIE_COUNT_CORRECTABLE_ERRORS",
    174: "PCIE_COUNT_NAKS_RECEIVED",
    175: "PCIE_COUNT_RECEIVER_ERROR",
    176: "PCIE_COUNT_BAD_TLP",
    177: "PCIE_COUNT_NAKS_SENT",
    178: "PCIE_COUNT_BAD_DLLP",
    179: "PCIE_COUNT_NON_FATAL_ERROR",
    180: "PCIE_COUNT_FATAL_ERROR",
    181: "PCIE_COUNT_UNSUPPORTED_REQ",
    182: "PCIE_COUNT_LCRC_ERROR",
    183: "PCIE_COUNT_LANE_ERROR",
}
GPM = {
    1: "GRAPHICS_UTIL",
    2: "SM_UTIL",
    3: "SM_OCCUPANCY",
    5: "ANY_TENSOR_UTIL",
    10: "DRAM_BW_UTIL",
    20: "PCIE_TX_PER_SEC",
    21: "PCIE_RX_PER_SEC",
    60: "NVLINK_TOTAL_RX_PER_SEC",
    61: "NVLINK_TOTAL_TX_PER_SEC",
}
POLICIES = dict(enumerate(("POWER", "THERMAL", "SYNC_BOOST", "BOARD_LIMIT", "LOW_UTILIZATION", "RELIABILITY")))
LINK_ERRORS = {0: "REPLAY", 1: "RECOVERY", 2: "CRC_FLIT", 3: "CRC_DATA", 4: "ECC_DATA"}


@pytest.mark.parametrize(
    ("asked", "named", "prefix"),
    [
        (
            {
                *(field for _, field in names.VIOLATIONS.values()),
                *names.EVENT_TIMES,
                *names.LINK_DATA,
                *names.LINK_BYTES,
                *names.LINK_COUNTS,
                *names.PCIE_ERRORS,
                names.MEMORY_TEMPERATURE,
                names.LINK_COUNT,
                names.LINK_SPEED,
                names.LINK_SPEED_COMMON,
            },
            FIELDS,
            "NVML_FI_DEV_",
        ),
        (set(gpm.METRICS), GPM, "NVML_GPM_METRIC_"),
        (set(names.LINK_ERRORS), LINK_ERRORS, "NVML_NVLINK_ERROR_DL_"),
        (
            set(names.VIOLATIONS),
            {n: reason.upper() for n, (reason, _) in names.VIOLATIONS.items()},
            "NVML_PERF_POLICY_",
        ),
    ],
    ids=["fields", "gpm", "links", "policies"],
)
def test_numbers_are_those_of_the_package(asked: set[int], named: Mapping[int, str], prefix: str) -> None:
    nvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed (kvscope[nvml])")
    assert asked == set(named)
    assert {number: getattr(nvml, prefix + name, None) for number, name in named.items()} == {n: n for n in named}


def test_bits_of_the_clock_events_are_those_of_the_package() -> None:
    nvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed (kvscope[nvml])")
    assert list(names.REASONS) == [
        nvml.nvmlClocksEventReasonGpuIdle,
        nvml.nvmlClocksEventReasonApplicationsClocksSetting,
        nvml.nvmlClocksEventReasonSwPowerCap,
        nvml.nvmlClocksEventReasonHwSlowdown,
        nvml.nvmlClocksEventReasonSyncBoost,
        nvml.nvmlClocksEventReasonSwThermalSlowdown,
        nvml.nvmlClocksEventReasonHwThermalSlowdown,
        nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
        nvml.nvmlClocksEventReasonDisplayClockSetting,
    ]


def test_rules_read_names_that_there_are_and_every_name_has_its_help() -> None:
    read = {name for rule in RuleSet.load().rules for name in rule.raw_names if name.startswith(names.PREFIX)}
    assert read - set(names.HELP) == set()
    # What is there to be looked at, not to be judged.
    unread = {"clock_event_active", "field_state", "driver_info", "reading_seconds"}
    assert set(names.HELP) - read == {names.PREFIX + name for name in unread}


@pytest.mark.parametrize("made", [machines.h100, machines.a100, machines.b200, machines.mig])
def test_a_page_has_no_name_without_help(machine: Machine, made: object) -> None:
    """Read in a process of its own, as the library is loaded once in each."""
    from probes.nvml.helper import Helper

    assert callable(made)
    machine.set(made() | {"process.0": "1 5"})
    helper = Helper()
    page = helper.ask().result(30)["page"]
    helper.kill()
    told = {line.split("{")[0] for line in page.splitlines() if not line.startswith("#")}
    assert told
    assert told - set(names.HELP) == set()
    assert Monitor().read().ends, "no library is loaded in this process"
