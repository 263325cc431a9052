"""GPM: activity and traffic between two samples, on Hopper and later."""

from __future__ import annotations

import time
from typing import Any

from probes.nvml.asker import Asker, fault
from probes.nvml.faults import FieldState, field_state
from probes.nvml.samples import Samples

_PERCENT_MOST = 110.0
"""Per cent above which a share is no reading (policy: 100 is the most there can be; sampling overshoots a little)."""
_MIB = 1 << 20
_PCIE_MOST_MIB = 256e9 / _MIB
_NVLINK_MOST_MIB = 8e12 / _MIB
"""Twice what a PCIe 6 link of 16 lanes and four times what NVLink 5 moves one way: beyond it is a spike (physical)."""
METRICS: dict[int, tuple[str, float, float]] = {
    1: ("gpm_graphics_active_ratio", 0.01, _PERCENT_MOST),
    2: ("gpm_sm_active_ratio", 0.01, _PERCENT_MOST),
    3: ("gpm_sm_occupancy_ratio", 0.01, _PERCENT_MOST),
    5: ("gpm_tensor_active_ratio", 0.01, _PERCENT_MOST),
    10: ("gpm_dram_bandwidth_ratio", 0.01, _PERCENT_MOST),
    20: ("pcie_transmit_bytes_per_second", _MIB, _PCIE_MOST_MIB),
    21: ("pcie_receive_bytes_per_second", _MIB, _PCIE_MOST_MIB),
    60: ("nvlink_receive_bytes_per_second", _MIB, _NVLINK_MOST_MIB),
    61: ("nvlink_transmit_bytes_per_second", _MIB, _NVLINK_MOST_MIB),
}
"""nvmlGpmMetricId_t → name, scale to base units, the most that can be: per cent and MiB/s in nvml.h."""
_BOARD_ONLY = frozenset((20, 21, 60, 61))
APART_S = 0.1
"""Two samples nearer than this are not compared (policy): so short a time says little."""


class Gpm:
    """Keeps a device's previous sample; ``instance`` is the GPU instance of a MIG device."""

    def __init__(self, nvml: Any, handle: Any, instance: int | None = None) -> None:
        self._nvml, self._handle, self._instance = nvml, handle, instance
        self._previous: Any = None
        self._spare: Any = None
        self._taken_s = 0.0
        self._wanted = [one for one in METRICS if instance is None or one not in _BOARD_ONLY]

    def supported(self, ask: Asker) -> bool:
        told = ask.ask("gpm", "nvmlGpmQueryDeviceSupport")
        if told is not None and not told.isSupportedDevice:
            ask.lack("gpm", "unsupported")
        return told is not None and bool(told.isSupportedDevice)

    def read(self, ask: Asker, out: Samples) -> None:
        """A new sample, and what happened since the previous one."""
        now = time.monotonic()
        if self._previous is not None and now - self._taken_s < APART_S:
            return self._lack(ask, "no_data")
        state = self._sample(ask)
        if state is not None:
            return self._lack(ask, state)
        previous, self._previous, self._spare = self._previous, self._spare, self._previous
        self._taken_s = now
        if previous is None:
            return self._lack(ask, "no_data")
        return self._compare(previous, ask, out)

    def _sample(self, ask: Asker) -> FieldState | None:
        """Fill the spare sample; why it could not be."""
        if self._spare is None:
            self._spare, state = ask.plain("nvmlGpmSampleAlloc")
            if state is not None:
                return state
        if self._instance is None:
            return ask.plain("nvmlGpmSampleGet", self._handle, self._spare).state
        return ask.plain("nvmlGpmMigSampleGet", self._handle, self._instance, self._spare).state

    def _compare(self, previous: Any, ask: Asker, out: Samples) -> None:
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(self._wanted)
        request.sample1, request.sample2 = previous, self._previous
        for place, number in enumerate(self._wanted):
            request.metrics[place].metricId = number
        state = ask.plain("nvmlGpmMetricsGet", request).state
        if state is not None:
            return self._lack(ask, state)
        for place, number in enumerate(self._wanted):
            name, scale, most = METRICS[number]
            told = request.metrics[place]
            code = int(told.nvmlReturn)
            state = field_state(code, f"NVML error {code}") if code else fault(told.value, most=most)
            if state is None:
                out.add(name, told.value * scale)
            else:
                ask.lack(name, state)
        return None

    def _lack(self, ask: Asker, state: FieldState) -> None:
        for number in self._wanted:
            ask.lack(METRICS[number][0], state)
