"""The target `nvml`: the real nvidia-ml-py over a stub driver, from calls to canonical names and states in words."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from probes.attach import Attachment, attach
from probes.nvml.helper import Helper
from probes.promql.value import Vector
from probes.rules import RuleSet
from probes.series import SeriesStore
from probes.sources.base import SourceStatus
from probes.sources.nvml import NvmlSource
from probes.target import parse_target
from probes.view import View
from tests.probes.nvml import machines
from tests.probes.nvml.machines import GIB, Machine

T0 = 1_780_000_000_000
S = 1000


class Watched:
    """The source attached to, a second after a second."""

    def __init__(self, **options: float) -> None:
        self.store = SeriesStore()
        self.helper = Helper(again_s=options.pop("again_s", 0.0))
        self.source = NvmlSource(parse_target("nvml"), self.store, helper=self.helper, **options)
        self.view = View(self.store, RuleSet.load())
        self.now_ms = T0 - S

    def cycle(self, times: int = 1, apart_s: float = 0.0) -> SourceStatus:
        for n in range(times):
            self.now_ms += S
            if n or apart_s:
                time.sleep(apart_s)
            status = asyncio.run(self.source.collect(self.now_ms))
        return status

    def ask(self, expr: str, *by: str) -> dict[str, float]:
        """Values of an expression, by some labels joined by spaces."""
        answer = self.view.instant(expr, self.now_ms)
        assert isinstance(answer, Vector)
        keys = [" ".join(one.get(label) for label in by) for one in answer.labels]
        assert len(set(keys)) == len(keys), f"not told apart by {by}: {answer.labels}"
        return dict(zip(keys, map(float, answer.values[:, 0]), strict=True))

    def states(self, pattern: str = ".*") -> dict[str, str]:
        """Field → state of what the driver did not tell."""
        answer = self.view.instant(f'kvscope_nvml_field_state{{field=~"{pattern}"}}', self.now_ms)
        assert isinstance(answer, Vector)
        return {one.get("field"): one.get("state") for one in answer.labels}


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def one(**options: float) -> Watched:
        made.append(Watched(**options))
        return made[-1]

    yield one
    for watched in made:
        asyncio.run(watched.source.close())


APART_S = 0.15
"""More than two GPM samples must be apart."""


def test_an_h100_from_its_calls_to_canonical_names(machine: Machine, watch: Callable[..., Watched]) -> None:
    machine.set(machines.h100())
    one = watch()
    status = one.cycle(2, APART_S)
    assert (status.state, status.error, status.detail) == ("fresh", None, _no_process(70))
    expected = {
        "utilization_ratio": 0.97, "memory_copy_ratio": 0.41, "engine_active_ratio": 0.985, "sm_active_ratio": 0.8825,
        "sm_occupancy_ratio": 0.335, "tensor_active_ratio": 0.125, "dram_active_ratio": 0.9175, "power_watts": 695.5,
        "power_limit_watts": 700, "energy_joules_total": 123456.789, "sm_clock_hertz": 1.755e9,
        "sm_clock_max_hertz": 1.98e9, "memory_clock_hertz": 2.619e9, "memory_clock_max_hertz": 2.619e9,
        "performance_state": 0, "clock_event_reasons": 4, "temperature_celsius": 61, "memory_temperature_celsius": 78,
        "temperature_margin_celsius": 26, "memory_total_bytes": 80 * GIB, "memory_used_bytes": 70 * GIB,
        "memory_free_bytes": 9 * GIB, "memory_reserved_bytes": GIB, "pcie_receive_bytes_per_second": 2 * GIB,
        "pcie_transmit_bytes_per_second": GIB, "pcie_replays_total": 3, "pcie_link_generation": 5,
        "pcie_link_generation_max": 5, "pcie_link_lanes": 16, "pcie_link_lanes_max": 16,
        "nvlink_receive_bytes_per_second": 4 * GIB, "nvlink_transmit_bytes_per_second": 8 * GIB, "row_remap_pending": 1,
        "row_remap_failed": 0, "xid_last": 0, "mig_enabled": 0, "lost": 0,
    }  # fmt: skip
    told = {name: one.ask(f"kv:gpu_{name}").get("") for name in expected}
    assert told == pytest.approx(expected, rel=1e-12)
    assert one.ask("kv:gpu_nvlink_receive_bytes_total", "link") == {"0": 3000 * 1024, "1": 4000 * 1024}
    assert one.ask("kv:gpu_nvlink_transmit_bytes_total", "link") == {"0": 1000 * 1024, "1": 2000 * 1024}
    assert one.ask("kv:gpu_nvlink_rate_bytes_per_second", "link") == {"0": 26.562e9, "1": 26.562e9}
    assert one.ask("kv:gpu_nvlink_up", "link") == {"0": 1, "1": 1}
    assert one.ask("kv:gpu_nvlink_errors_total > 0", "error", "link") == {"replay 1": 7, "crc_flit 1": 900}
    assert len(one.ask("kv:gpu_nvlink_errors_total", "error", "link")) == 10
    assert one.ask("kv:gpu_ecc_errors_total", "error", "lifetime") == {
        "corrected volatile": 0, "corrected aggregate": 1, "uncorrected volatile": 10, "uncorrected aggregate": 11,
    }  # fmt: skip
    assert one.ask("kv:gpu_remapped_rows_total", "error") == {"corrected": 5, "uncorrected": 2}
    assert one.ask("kv:gpu_clock_violation_seconds_total", "reason") == pytest.approx({
        "power": 1, "thermal": 2, "sync_boost": 3, "board_limit": 4, "low_utilization": 5, "reliability": 6,
        "software_thermal": 4, "hardware_thermal": 5, "hardware_power_brake": 6,
    })  # fmt: skip
    assert one.ask("kv:gpu_pcie_errors_total", "error") == {
        "correctable": 173, "naks_received": 174, "receiver": 175, "bad_tlp": 176, "naks_sent": 177, "bad_dllp": 178,
        "non_fatal": 179, "fatal": 180, "unsupported_request": 181, "lcrc": 182, "lane": 183,
    }  # fmt: skip
    assert one.ask("kvscope_nvml_clock_event_active == 1", "reason") == {"software_power_cap": 1}
    assert one.ask("floor(kv:gpu_clock_event_reasons / 4) % 2") == {"": 1}
    assert one.states() == {"slowdown_temperature_celsius": "unsupported"}


def _no_process(gib: int) -> str:
    return f"GPU 0: {gib} GiB in use and no process shown: a container sees them with the host's pid namespace only"


def test_labels_are_spelled_as_dcgm_exporter_spells_them(machine: Machine, watch: Callable[..., Watched]) -> None:
    machine.set(machines.h100())
    one = watch()
    one.cycle()
    (labels,) = one.view.instant("kv:gpu_power_watts", one.now_ms).labels
    assert labels.as_dict() == {
        "__name__": "kv:gpu_power_watts", "system": "nvml", "job": "nvml", "instance": socket.gethostname(), "gpu": "0",
        "UUID": "GPU-0000", "device": "nvidia0", "modelName": "NVIDIA H100 80GB HBM3", "pci_bus_id": "00000000:18:00.0",
        "Hostname": socket.gethostname(),
    }  # fmt: skip


def test_an_a100_without_gpm_samples_its_pcie_link(machine: Machine, watch: Callable[..., Watched]) -> None:
    machine.set(machines.a100())
    one = watch()
    one.cycle(2, APART_S)
    assert one.ask("kv:gpu_pcie_transmit_bytes_per_second") == {"": 1.5e6}
    assert one.ask("kv:gpu_pcie_receive_bytes_per_second") == {"": 2.5e6}
    assert one.ask("kv:gpu_slowdown_temperature_celsius") == {"": 92}
    assert one.ask("kv:gpu_nvlink_rate_bytes_per_second", "link") == {"0": 25.781e9, "1": 25.781e9}
    for name in ("dram_active_ratio", "sm_active_ratio", "nvlink_receive_bytes_per_second", "pcie_errors_total"):
        assert one.ask(f"kv:gpu_{name}") == {}
    assert one.states() == {
        "gpm": "unsupported",
        "pcie_errors_total": "unsupported",
        "temperature_margin_celsius": "unsupported",
    }


def test_nvlink_5_counts_in_fields_of_its_own(machine: Machine, watch: Callable[..., Watched]) -> None:
    machine.set(machines.b200())
    one = watch()
    one.cycle()
    assert one.ask("kv:gpu_nvlink_errors_total > 0", "error", "link") == {"recovery 1": 4}
    assert len(one.ask("kv:gpu_nvlink_errors_total", "error", "link")) == 14
    assert one.ask("kv:gpu_nvlink_transmit_bytes_total", "link") == {"0": 111, "1": 111}
    assert one.ask("kv:gpu_nvlink_receive_bytes_total", "link") == {"0": 222, "1": 222}


def test_a_link_that_is_down_is_told_and_has_no_counters(machine: Machine, watch: Callable[..., Watched]) -> None:
    machine.set(machines.h100())
    machine.change({"DeviceGetNvLinkState.1": 0})
    one = watch()
    one.cycle()
    assert one.ask("kv:gpu_nvlink_up", "link") == {"0": 1, "1": 0}
    assert set(one.ask("kv:gpu_nvlink_receive_bytes_total", "link")) == {"0"}


def test_gpm_is_there_from_the_second_reading_on(machine: Machine, watch: Callable[..., Watched]) -> None:
    machine.set(machines.h100())
    one = watch()
    one.cycle()
    assert one.ask("kv:gpu_dram_active_ratio") == {}
    assert one.states("gpm_.*|pcie_.*")["gpm_dram_bandwidth_ratio"] == "no_data"
    one.cycle(1, APART_S)
    assert one.ask("kv:gpu_dram_active_ratio") == {"": pytest.approx(0.9175)}
    one.cycle(1, APART_S)
    assert one.ask("kv:gpu_dram_active_ratio") == {"": pytest.approx(0.9175)}, "two samples, in turn"


NO_NUMBERS: list[tuple[str, object, str, str]] = [
    ("DeviceGetUtilizationRates.0", 101, "utilization_ratio", "out_of_range"),
    ("DeviceGetUtilizationRates.0", 0xFFFFFFFF, "utilization_ratio", "blank"),
    ("DeviceGetPowerUsage", "!3", "power_watts", "unsupported"),
    ("DeviceGetPowerUsage", "!4", "power_watts", "no_permission"),
    ("DeviceGetPowerUsage", "!16", "power_watts", "reset_required"),
    ("DeviceGetPowerUsage", "!999", "power_watts", "failed"),
    ("DeviceGetPowerUsage", 0xFFFFFFFF, "power_watts", "blank"),
    ("DeviceGetEnforcedPowerLimit", 4_000_000_000, "power_limit_watts", "out_of_range"),
    ("DeviceGetTotalEnergyConsumption", 2**64 - 1, "energy_joules_total", "blank"),
    ("DeviceGetTotalEnergyConsumption", 2**63, "energy_joules_total", "out_of_range"),
    ("DeviceGetTemperatureV.0", 2**31 - 1, "temperature_celsius", "out_of_range"),
    ("field.82", 0, "memory_temperature_celsius", "out_of_range"),
    ("DeviceGetPerformanceState", 32, "performance_state", "out_of_range"),
    ("DeviceGetClockInfo.1", 70_000, "sm_clock_hertz", "out_of_range"),
    ("DeviceGetCurrPcieLinkWidth", 0, "pcie_link_lanes", "out_of_range"),
    ("DeviceGetPcieReplayCounter", 0xFFFFFFFF, "pcie_replays_total", "blank"),
    ("memory.used", 2**64 - 1, "memory_used_bytes", "blank"),
    ("memory.used", 81 * GIB, "memory_used_bytes", "out_of_range"),
    ("DeviceGetCurrentClocksEventReasons", "!3", "clock_event_reasons", "unsupported"),
    ("DeviceGetTotalEccErrors.0.0", "!3", "ecc_errors_total", "unsupported"),
    ("gpm.10", "nan", "gpm_dram_bandwidth_ratio", "blank"),
    ("gpm.10", 250, "gpm_dram_bandwidth_ratio", "out_of_range"),
    ("gpm.10", -1, "gpm_dram_bandwidth_ratio", "out_of_range"),
    ("gpm.10", "!3", "gpm_dram_bandwidth_ratio", "unsupported"),
    ("gpm.60", 2**64, "nvlink_receive_bytes_per_second", "out_of_range"),
    ("gpm.20", "inf", "pcie_transmit_bytes_per_second", "out_of_range"),
]


Case = tuple[str, object, str, str]


def grouped(cases: list[Case]) -> list[list[Case]]:
    """As few groups as it takes for no line and no field to be twice in one: each is a process of its own."""
    groups: list[list[Case]] = []
    for case in cases:
        free = (one for one in groups if not any(case[0] == other[0] or case[2] == other[2] for other in one))
        group = next(free, None)
        if group is None:
            groups.append([case])
        else:
            group.append(case)
    return groups


@pytest.mark.parametrize("cases", grouped(NO_NUMBERS))
def test_what_is_no_measurement_is_a_state(machine: Machine, watch: Callable[..., Watched], cases: list[Case]) -> None:
    machine.set(machines.h100() | {line: value for line, value, _, _ in cases})
    one = watch()
    status = one.cycle(2, APART_S)
    assert status.state == "fresh"
    states = one.states()
    for _, _, field, state in cases:
        assert states[field] == state
        told = one.ask(f"kvscope_nvml_{field}", "error", "lifetime")
        assert "" not in told, field
        assert "corrected volatile" not in told, field
    assert one.ask("kv:gpu_temperature_margin_celsius") == {"": 26}, "one field costs no other"
    assert "temperature_margin_celsius" not in states


def test_answers_that_cannot_be_taken_are_missing_and_the_rest_goes_on(
    machine: Machine, watch: Callable[..., Watched]
) -> None:
    garbled = "\udcff\udcfe"
    texts = ("SystemGetDriverVersion", "DeviceGetUUID", "DeviceGetName", "DeviceGetPciInfo")
    machine.set(machines.h100() | dict.fromkeys(texts, garbled) | {"process_count": 0xFFFFFFF0})
    one = watch()
    status = one.cycle()
    assert (status.state, status.error) == ("fresh", None)
    labels = ("UUID", "modelName", "pci_bus_id")
    assert one.states("|".join((*labels, "process_memory_bytes"))) == dict.fromkeys(
        (*labels, "process_memory_bytes"), "failed"
    )
    assert one.ask("kv:gpu_power_watts", "device") == {"nvidia0": 695.5}


def test_gpm_without_the_right_to_it(machine: Machine, watch: Callable[..., Watched]) -> None:
    machine.set(machines.h100() | {"GpmSampleGet": "!4"})
    one = watch()
    one.cycle(2, APART_S)
    assert one.ask("kv:gpu_dram_active_ratio") == {}
    assert set(one.states("gpm_.*|nvlink_receive.*").values()) == {"no_permission"}


def test_a_slow_link_sample_of_2_to_the_32_is_no_rate(machine: Machine, watch: Callable[..., Watched]) -> None:
    machine.set(machines.a100())
    machine.change({"DeviceGetPcieThroughput.0": 4_000_000_000})
    one = watch()
    one.cycle()
    assert one.ask("kv:gpu_pcie_transmit_bytes_per_second") == {}
    assert one.states("pcie_transmit.*") == {"pcie_transmit_bytes_per_second": "out_of_range"}


def test_a_device_lost_in_mid_reading_leaves_nothing_of_it(
    machine: Machine, watch: Callable[..., Watched], tmp_path: Path
) -> None:
    log = tmp_path / "calls"
    machine.set(machines.h100() | {"DeviceGetCount": 2, "DeviceGetUUID@1": "GPU-0001", "calls": log})
    one = watch()
    one.cycle()
    assert set(one.ask("kv:gpu_power_watts", "gpu")) == {"0", "1"}
    so_far = sum(line.endswith("@1") for line in log.read_text().splitlines())
    machine.change({"lost_after@1": so_far + 20, "calls": None})
    status = one.cycle()
    assert (status.state, status.error) == ("fresh", None)
    assert "GPU 1: the driver says that it is lost" in status.detail
    assert one.ask("kv:gpu_lost", "gpu") == {"0": 0, "1": 1}
    assert set(one.ask('{__name__=~"kvscope_nvml_.*",gpu="1"}', "__name__")) == {"kvscope_nvml_lost"}
    machine.change({"lost_after@0": 1})
    status = one.cycle()
    assert status.state == "gone"
    assert status.error == "GPU 0: the driver says that it is lost; GPU 1: the driver says that it is lost"
    machine.change({"lost_after@0": None, "lost_after@1": None})
    assert one.cycle().state == "fresh"
    assert one.ask("kv:gpu_lost", "gpu") == {"0": 0, "1": 0}


def test_mig_instances_have_their_own_memory_and_activity(machine: Machine, watch: Callable[..., Watched]) -> None:
    machine.set(machines.mig() | {"process.0": f"4242 {7 * GIB} 5"})
    one = watch()
    one.cycle(2, APART_S)
    assert one.ask("kv:gpu_mig_enabled") == {"": 1}
    key = ("GPU_I_ID", "GPU_I_PROFILE")
    assert one.ask("kv:gpu_memory_used_bytes", *key) == {
        " ": 70 * GIB, "1 3g.40gb": 10 * GIB, "5 3g.40gb": 20 * GIB,
    }  # fmt: skip
    assert one.ask("kv:gpu_dram_active_ratio", *key) == pytest.approx({" ": 0.9175, "1 3g.40gb": 0.1, "5 3g.40gb": 0.2})
    assert one.ask("kv:gpu_utilization_ratio") == {}
    assert one.ask("kv:gpu_process_memory_bytes", "pid", "GPU_I_ID") == {"4242 5": 7 * GIB}


def test_processes_and_what_a_container_hides(machine: Machine, watch: Callable[..., Watched]) -> None:
    machine.set(machines.h100() | {"process.0": f"{os.getpid()} {5 * GIB}", "process.1": f"1 {2**64 - 1}"})
    one = watch()
    status = one.cycle()
    assert status.detail == ""
    assert one.ask("kv:gpu_process_memory_bytes", "pid") == {str(os.getpid()): 5 * GIB}
    assert one.states("process.*") == {"process_memory_bytes": "blank"}
    machine.change({"process.0": f"4194999 {5 * GIB}", "process.1": None})
    status = one.cycle()
    assert status.detail.startswith("GPU 0: its processes' ids are of another pid namespace")
    machine.change({"process.0": None, "memory.used": GIB // 2})
    assert one.cycle().detail == "", "an idle device has none"


def test_xids_are_counted_as_they_come(machine: Machine, watch: Callable[..., Watched], tmp_path: Path) -> None:
    machine.set(machines.h100() | {"DeviceGetCount": 2, "xids": tmp_path / "xids"})
    one = watch()
    one.cycle()
    assert one.ask("kv:gpu_xid_last", "gpu") == {"0": 0, "1": 0}
    assert one.ask("kv:gpu_xid_errors_total", "gpu", "xid") == {}
    (tmp_path / "xids").write_text("1 63\n1 79\n1 63\n")
    one.cycle(2)
    assert one.ask("kv:gpu_xid_last", "gpu") == {"0": 0, "1": 63}
    assert one.ask("kv:gpu_xid_errors_total", "gpu", "xid") == {"1 63": 2, "1 79": 1}


def test_events_that_cannot_be_had_are_missing_not_zero(machine: Machine, watch: Callable[..., Watched]) -> None:
    machine.set(machines.h100() | {"DeviceGetSupportedEventTypes": 0})
    one = watch()
    one.cycle()
    assert one.ask("kv:gpu_xid_last") == {}
    assert one.states("xid.*") == {"xid_last": "unsupported"}


def test_a_field_that_is_unsupported_is_not_asked_again(
    machine: Machine, watch: Callable[..., Watched], tmp_path: Path
) -> None:
    log = tmp_path / "calls"
    machine.set(machines.h100() | {"calls": log, "DeviceGetTotalEnergyConsumption": "!3"})
    one = watch()
    one.cycle(3)
    asked = log.read_text().splitlines()
    assert asked.count("DeviceGetPowerUsage@0") == 3
    assert asked.count("DeviceGetTotalEnergyConsumption@0") == 1
    assert one.states("energy.*") == {"energy_joules_total": "unsupported"}


@pytest.mark.parametrize(
    ("lines", "state", "words"),
    [
        ({"DeviceGetCount": 0}, "unsupported", "the NVIDIA driver sees no GPU"),
        ({"Init": "!9"}, "gone", "the NVIDIA driver is not loaded"),
        ({"Init": "!4"}, "no-permission", "may not be asked by this user"),
        ({"Init": "!18"}, "unsupported", "of different versions"),
        ({"Init": "!999"}, "unsupported", "does not start"),
        ({"Init": "!998", "error": "\udcff"}, "unsupported", "does not start: an error without a text"),
        ({"DeviceGetHandleByIndex": "!4"}, "no-permission", "GPU 0 cannot be asked: Insufficient Permissions"),
    ],
    ids=["no device", "not loaded", "no right", "other version", "unknown", "garbled", "no right to the device"],
)
def test_a_driver_that_does_not_start_is_told_in_words(
    machine: Machine, watch: Callable[..., Watched], lines: machines.Lines, state: str, words: str
) -> None:
    machine.set(machines.h100() | lines)
    status = watch().cycle()
    assert status.state == state
    assert words in (status.error or "")


def test_no_library_is_told_in_one_line(
    library: Path, monkeypatch: pytest.MonkeyPatch, watch: Callable[..., Watched]
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    try:
        import ctypes

        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this host has an NVIDIA driver")
    one = watch()
    status = one.cycle()
    assert status.state == "unsupported"
    assert (status.error or "").startswith("no NVIDIA driver here: libnvidia-ml.so.1 was not found")
    assert one.ask("up") == {"": 0}


def test_a_driver_that_goes_in_mid_run_and_comes_back(machine: Machine, watch: Callable[..., Watched]) -> None:
    machine.set(machines.h100())
    one = watch()
    assert one.cycle().state == "fresh"
    machine.change({"driver": "!9"})
    status = one.cycle()
    assert (status.state, status.error) == ("gone", "the NVIDIA driver is not loaded")
    assert one.ask('{__name__=~"kvscope_nvml_.*"}', "__name__") == {}
    machine.change({"driver": None})
    assert one.cycle().state == "fresh"


def test_a_call_that_hangs_costs_the_process_and_nothing_else(machine: Machine, watch: Callable[..., Watched]) -> None:
    machine.set(machines.h100())
    one = watch(timeout_s=0.5)
    assert one.cycle().state == "fresh"
    first = one.helper._process
    assert first is not None
    machine.change({"DeviceGetPowerUsage": "hang"})
    status = one.cycle()
    assert status.state == "timeout"
    assert (status.error or "").startswith(
        "the NVIDIA driver has not answered for 0.5 s; the process that asked it was"
    )
    assert first.poll() == -9
    assert one.ask("kv:gpu_power_watts") == {}
    assert one.ask("up") == {"": 0}
    machine.change({"DeviceGetPowerUsage": 100_000})
    assert one.cycle().state == "fresh"
    assert one.ask("kv:gpu_power_watts") == {"": 100}


def test_after_a_hang_the_driver_is_left_alone_for_a_while(
    machine: Machine, watch: Callable[..., Watched], tmp_path: Path
) -> None:
    log = tmp_path / "calls"
    machine.set(machines.h100() | {"Init": "hang", "calls": log})
    one = watch(timeout_s=0.5, start_s=1.5, again_s=60.0)
    status = one.cycle(3)
    assert status.state == "timeout"
    assert (status.error or "").endswith("was killed, again in 60 s")
    assert log.read_text().splitlines().count("Init@-1") == 1


def test_a_driver_that_crashes_is_told_by_its_signal(machine: Machine, watch: Callable[..., Watched]) -> None:
    machine.set(machines.h100() | {"DeviceGetPowerUsage": "crash"})
    one = watch()
    status = one.cycle()
    assert status.state == "gone"
    assert "it was ended by SIGSEGV" in (status.error or "")
    machine.change({"DeviceGetPowerUsage": 100_000})
    assert one.cycle().state == "fresh"


def other(*words: str) -> NvmlSource:
    """A source whose process is another."""
    return NvmlSource(
        parse_target("nvml"), SeriesStore(), timeout_s=0.5, start_s=0.5, helper=Helper(words=words, again_s=0.0)
    )


def test_a_process_that_the_kernel_does_not_let_go_is_not_joined_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a call that nothing can interrupt a process outlives even SIGKILL; here it is not sent."""
    source = other("sleep", "60")
    killed: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: killed.append(process))
    status = source.collect_alone(T0)
    assert (status.state, (status.error or "").rpartition(", ")[2]) == ("timeout", "again when the kernel lets it go")
    assert source.collect_alone(T0 + S).state == "timeout"
    assert len(killed) == 1
    assert source._helper._process is None
    monkeypatch.undo()
    killed[0].kill()
    killed[0].wait(5)
    source.collect_alone(T0 + 2 * S)
    assert source._helper._killed is not killed[0], "a second process was started, and killed in its turn"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("read line; echo nonsense", "it said something that is no answer"),
        ("exit 3", "it exited with 3"),
        ("read line; kill -KILL $$", "it was ended by SIGKILL"),
    ],
)
def test_a_process_that_fails_is_told_in_words(script: str, words: str) -> None:
    source = other("sh", "-c", script)
    status = source.collect_alone(T0)
    assert status.state == "gone"
    assert words in (status.error or "")
    asyncio.run(source.close())


def test_the_process_starts_with_the_first_reading_and_ends_with_its_parent(machine: Machine) -> None:
    machine.set(machines.h100())
    attachment: Attachment = attach(["nvml"])
    (source,) = attachment.sources
    assert isinstance(source, NvmlSource)
    assert source._helper._process is None
    assert attachment.cycle_alone(T0) is not None
    process = source._helper._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()  # what happens when the parent dies
    assert process.wait(5) == 0


def test_a_hanging_process_ends_with_its_parent(machine: Machine) -> None:
    machine.set(machines.h100() | {"Init": "hang"})
    helper = Helper()
    answer = helper.ask()
    process = helper._process
    assert process is not None
    assert process.stdin is not None
    with pytest.raises(TimeoutError):
        answer.result(1.0)
    process.stdin.close()
    assert process.wait(5) == 0
