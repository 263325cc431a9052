"""What a device says of itself as a whole: use, memory, clocks, power, heat, its PCIe link."""

from __future__ import annotations

from probes.nvml.asker import Asker
from probes.nvml.names import EVENT_TIMES, MEMORY_TEMPERATURE, PCIE_ERRORS, REASONS, VIOLATIONS
from probes.nvml.samples import Samples

_SM, _MEMORY = 1, 2
_THRESHOLD_SLOWDOWN = 1
_MEMORY_V2 = 0x02000028
"""nvmlMemory_v2: the structure's size and version."""
_CLOCK_MOST_MHZ = 10_000
_POWER_MOST_MW = 100_000_000
_HOTTEST_C = 200
_PSTATE_MOST = 15
_GENERATION_MOST, _LANES_MOST = 8, 32
_PCIE_MOST_KB = 256_000_000
"""Bounds beyond which a value is no measurement (physical: about twice what the fastest part of 2026 does)."""


def use(ask: Asker, out: Samples) -> None:
    rates = ask.ask("utilization_ratio", "nvmlDeviceGetUtilizationRates")
    if rates is None:
        ask.lack("memory_utilization_ratio", ask.missing["utilization_ratio"])
    else:
        out.add("utilization_ratio", ask.checked("utilization_ratio", rates.gpu, 0.01, most=100))
        out.add("memory_utilization_ratio", ask.checked("memory_utilization_ratio", rates.memory, 0.01, most=100))
    state = ask.number("performance_state", "nvmlDeviceGetPerformanceState", most=_PSTATE_MOST)
    out.add("performance_state", state)


def memory(ask: Asker, out: Samples) -> None:
    """Of a device or of a MIG device, which share the call."""
    told = ask.reply("nvmlDeviceGetMemoryInfo", _MEMORY_V2)
    if told.state == "unsupported":  # before R510: used has the reserved part in it
        told = ask.reply("nvmlDeviceGetMemoryInfo")
        ask.lack("memory_reserved_bytes", "unsupported")
    parts = ("total", "used", "free", "reserved")
    if told.state is not None:
        for part in parts:
            ask.lack(f"memory_{part}_bytes", told.state)
        return
    for part in parts:
        value = getattr(told.value, part, None)
        if value is not None:
            most = float(told.value.total) if part != "total" else 2.0**50
            out.add(f"memory_{part}_bytes", ask.checked(f"memory_{part}_bytes", value, most=most))


def clocks(ask: Asker, out: Samples) -> None:
    _clocks(ask, out, "clock_hertz", "nvmlDeviceGetClockInfo")
    _reasons(ask, out)
    _violations(ask, out)


def _clocks(ask: Asker, out: Samples, field: str, function: str) -> None:
    for name, kind in (("sm", _SM), ("memory", _MEMORY)):
        mhz = ask.number(f"{name}_{field}", function, kind, scale=1e6, most=_CLOCK_MOST_MHZ)
        out.add(f"{name}_{field}", mhz)


def _reasons(ask: Asker, out: Samples) -> None:
    told = ask.reply("nvmlDeviceGetCurrentClocksEventReasons")
    if told.state == "unsupported":  # its name before R535
        told = ask.reply("nvmlDeviceGetCurrentClocksThrottleReasons")
    if told.state is not None:
        ask.lack("clock_event_reasons", told.state)
        return
    mask = ask.checked("clock_event_reasons", told.value, most=2.0**32)
    out.add("clock_event_reasons", mask)
    if mask is not None:
        for bit, reason in REASONS.items():
            out.add("clock_event_active", 1 if int(mask) & bit else 0, reason=reason)


def _violations(ask: Asker, out: Samples) -> None:
    """Times in ns. Each policy by its own function, or by the field that tells the same in newer drivers."""
    fields = ask.fields([*((field, 0) for _, field in VIOLATIONS.values()), *((field, 0) for field in EVENT_TIMES)])
    for policy, (reason, field) in VIOLATIONS.items():
        told = ask.reply("nvmlDeviceGetViolationStatus", policy)
        value, state = (fields[field, 0]) if told.state is not None else (told.value.violationTime, None)
        name = f"clock_violation_seconds_total/{reason}"
        if state is not None:
            ask.lack(name, told.state or state)
        else:
            out.add("clock_violation_seconds_total", ask.checked(name, value, 1e-9), reason=reason)
    for field, reason in EVENT_TIMES.items():
        value, state = fields[field, 0]
        if state is None:
            name = f"clock_violation_seconds_total/{reason}"
            out.add("clock_violation_seconds_total", ask.checked(name, value, 1e-9), reason=reason)


def power_and_heat(ask: Asker, out: Samples) -> None:
    for field, function in (("power_watts", "PowerUsage"), ("power_limit_watts", "EnforcedPowerLimit")):
        out.add(field, ask.number(field, f"nvmlDeviceGet{function}", scale=1e-3, most=_POWER_MOST_MW))
    energy = ask.number("energy_joules_total", "nvmlDeviceGetTotalEnergyConsumption", scale=1e-3)
    out.add("energy_joules_total", energy)
    out.add("temperature_celsius", _temperature(ask))
    margin = ask.number(
        "temperature_margin_celsius", "nvmlDeviceGetMarginTemperature", least=-_HOTTEST_C, most=_HOTTEST_C
    )
    out.add("temperature_margin_celsius", margin)
    value, state = ask.fields([(MEMORY_TEMPERATURE, 0)])[MEMORY_TEMPERATURE, 0]
    if state is not None:
        ask.lack("memory_temperature_celsius", state)
    else:  # 0 stands for no sensor: HBM at work is never that cold
        celsius = ask.checked("memory_temperature_celsius", value, least=1, most=_HOTTEST_C)
        out.add("memory_temperature_celsius", celsius)


def _temperature(ask: Asker) -> float | None:
    """By the function of newer drivers, or the one that it replaced (R560)."""
    told = ask.reply("nvmlDeviceGetTemperatureV", 0)
    if told.state is not None:
        told = ask.reply("nvmlDeviceGetTemperature", 0)
    if told.state is not None:
        ask.lack("temperature_celsius", told.state)
        return None
    return ask.checked("temperature_celsius", told.value, least=-_HOTTEST_C, most=_HOTTEST_C)


def limits(ask: Asker, out: Samples) -> None:
    """What hardly ever changes."""
    _clocks(ask, out, "clock_max_hertz", "nvmlDeviceGetMaxClockInfo")
    limit = ask.number(
        "slowdown_temperature_celsius", "nvmlDeviceGetTemperatureThreshold", _THRESHOLD_SLOWDOWN, most=_HOTTEST_C
    )
    out.add("slowdown_temperature_celsius", limit)
    _link(ask, out, "_max", "nvmlDeviceGetMaxPcieLink")


def pcie(ask: Asker, out: Samples) -> None:
    _link(ask, out, "", "nvmlDeviceGetCurrPcieLink")
    out.add("pcie_replays_total", ask.number("pcie_replays_total", "nvmlDeviceGetPcieReplayCounter"))


def _link(ask: Asker, out: Samples, suffix: str, stem: str) -> None:
    for name, function, most in (
        ("pcie_link_generation", "Generation", _GENERATION_MOST),
        ("pcie_link_lanes", "Width", _LANES_MOST),
    ):
        out.add(name + suffix, ask.number(name + suffix, stem + function, least=1, most=most))


def pcie_errors(ask: Asker, out: Samples) -> None:
    told = ask.fields([(field, 0) for field in PCIE_ERRORS])
    states = [state for _, state in told.values() if state is not None]
    if len(states) == len(told):
        ask.lack("pcie_errors_total", states[0])
    for field, error in PCIE_ERRORS.items():
        value, state = told[field, 0]
        if state is None:
            out.add("pcie_errors_total", ask.checked(f"pcie_errors_total/{error}", value), error=error)


def pcie_sampled(ask: Asker, out: Samples) -> None:
    """The driver's own sample of 20 ms each way, in which the call waits: for devices without GPM."""
    for name, counter in (("transmit", 0), ("receive", 1)):
        field = f"pcie_{name}_bytes_per_second"
        rate = ask.number(field, "nvmlDeviceGetPcieThroughput", counter, scale=1000, most=_PCIE_MOST_KB)
        out.add(field, rate)
