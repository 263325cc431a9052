"""One GPU told by NVML and by dcgm-exporter: the same canonical series, with the same values."""

from __future__ import annotations

import asyncio
import time

import pytest

from probes.promql.value import Vector
from probes.rules import RuleSet
from probes.series import SeriesStore
from probes.sources.info import info_labels
from probes.sources.ingest import TargetFrame
from probes.sources.nvml import NvmlSource
from probes.target import Target, parse_target
from probes.view import View
from tests.probes.dcgm_names import RENAMED, counters
from tests.probes.nvml import machines
from tests.probes.nvml.machines import Machine

T0 = 1_780_000_000_000
LABELS = 'gpu="0",UUID="GPU-0000",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",pci_bus_id="00000000:18:00.0"'

# The same H100 as `machines.h100`, in dcgm-exporter's fields and units.
H100 = {
    "DEV_GPU_UTIL": 97, "DEV_MEM_COPY_UTIL": 41, "PROF_GR_ENGINE_ACTIVE": 0.985, "PROF_SM_ACTIVE": 0.8825,
    "PROF_SM_OCCUPANCY": 0.335, "PROF_PIPE_TENSOR_ACTIVE": 0.125, "PROF_DRAM_ACTIVE": 0.9175, "DEV_FB_TOTAL": 81920,
    "DEV_FB_USED": 71680, "DEV_FB_FREE": 9216, "DEV_FB_RESERVED": 1024, "DEV_MIG_MODE": 0, "DEV_SM_CLOCK": 1755,
    "DEV_MAX_SM_CLOCK": 1980, "DEV_MEM_CLOCK": 2619, "DEV_MAX_MEM_CLOCK": 2619, "DEV_PSTATE": 0,
    "DEV_CLOCKS_EVENT_REASONS": 4, "DEV_POWER_VIOLATION": 1e9, "DEV_THERMAL_VIOLATION": 2e9,
    "DEV_SYNC_BOOST_VIOLATION": 3e9, "DEV_BOARD_LIMIT_VIOLATION": 4e9, "DEV_LOW_UTIL_VIOLATION": 5e9,
    "DEV_RELIABILITY_VIOLATION": 6e9, "DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS": 4e9,
    "DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS": 5e9, "DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS": 6e9,
    "DEV_POWER_USAGE": 695.5, "DEV_ENFORCED_POWER_LIMIT": 700, "DEV_TOTAL_ENERGY_CONSUMPTION": 123456789,
    "DEV_GPU_TEMP": 61, "DEV_MEMORY_TEMP": 78, "DEV_GPU_TEMP_LIMIT": 26, "PROF_PCIE_TX_BYTES": 2**30,
    "PROF_PCIE_RX_BYTES": 2**31, "DEV_PCIE_REPLAY_COUNTER": 3, "DEV_PCIE_LINK_GEN": 5, "DEV_PCIE_MAX_LINK_GEN": 5,
    "DEV_PCIE_LINK_WIDTH": 16, "DEV_PCIE_MAX_LINK_WIDTH": 16, "PROF_NVLINK_TX_BYTES": 2**33,
    "PROF_NVLINK_RX_BYTES": 2**32, "DEV_XID_ERRORS": 0, "DEV_ECC_SBE_VOL_TOTAL": 0, "DEV_ECC_SBE_AGG_TOTAL": 1,
    "DEV_ECC_DBE_VOL_TOTAL": 10, "DEV_ECC_DBE_AGG_TOTAL": 11, "DEV_CORRECTABLE_REMAPPED_ROWS": 5,
    "DEV_UNCORRECTABLE_REMAPPED_ROWS": 2, "DEV_ROW_REMAP_FAILURE": 0, "DEV_ROW_REMAP_PENDING": 1,
    "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 900, "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": 0,
    "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 7, "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 0,
    "DEV_PCIE_COUNT_CORRECTABLE_ERRORS": 173,
}  # fmt: skip
# NVML tells links and errors apart that DCGM adds up; the rest only one of them has.
BY_LINK = "sum without (link) (kv:gpu_nvlink_errors_total)"
ONLY_NVML = {
    "kv:gpu_nvlink_up", "kv:gpu_nvlink_rate_bytes_per_second", "kv:gpu_nvlink_receive_bytes_total",
    "kv:gpu_nvlink_transmit_bytes_total", "kv:gpu_lost",
}  # fmt: skip
Series = dict[tuple[tuple[str, str], ...], float]


def told(view: View, expr: str, at_ms: int) -> Series:
    answer = view.instant(expr, at_ms)
    assert isinstance(answer, Vector)
    own = ("job", "instance", "system", "Hostname")
    return {
        tuple(sorted((k, v) for k, v in one.as_dict().items() if k not in own)): float(value)
        for one, value in zip(answer.labels, answer.values[:, 0], strict=True)
    }


def by_dcgm(renamed: bool) -> View:
    """A page of the exporter's, under the names of now or those that will be."""
    new = {old: name for name, old in RENAMED.items()} if renamed else {}
    lines = []
    for field, value in H100.items():
        name = f"DCGM_FI_{field}"
        name, kind = new.get(name, name), counters()[name].type
        lines += [f"# TYPE {name} {kind}", f'{name}{{{LABELS},Hostname="node-a"}} {value}']
    store = SeriesStore()
    frame = TargetFrame(store, Target("http", "http://n:9400/metrics", job="dcgm", instance="n:9400"), info_labels())
    frame.write(T0, frame.parser.parse(("\n".join(lines) + "\n").encode()), 0.002)
    return View(store, RuleSet.load())


@pytest.fixture
def by_nvml(machine: Machine) -> View:
    machine.set(machines.h100())
    store = SeriesStore()
    source = NvmlSource(parse_target("nvml"), store)
    asyncio.run(source.collect(T0 - 1000))
    time.sleep(0.15)
    asyncio.run(source.collect(T0))
    asyncio.run(source.close())
    return View(store, RuleSet.load())


@pytest.mark.parametrize("renamed", [False, True], ids=["names of now", "new names"])
def test_either_source_tells_the_same(by_nvml: View, renamed: bool) -> None:
    dcgm = by_dcgm(renamed)
    compared = 0
    for entry in RuleSet.load().vocabulary:
        if not entry.name.startswith("kv:gpu_") or entry.name in ONLY_NVML:
            continue
        expr = BY_LINK if entry.name == "kv:gpu_nvlink_errors_total" else entry.name
        mine, theirs = told(by_nvml, expr, T0), told(dcgm, expr, T0)
        if entry.name in ("kv:gpu_nvlink_errors_total", "kv:gpu_pcie_errors_total"):
            mine = {labels: mine[labels] for labels in theirs}
        assert mine == pytest.approx(theirs, rel=1e-9), entry.name
        compared += bool(mine)
    assert compared >= 38
