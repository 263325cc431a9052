"""Simulated devices: their pages have the names that the rule files read, and what a scene does to one shows on it."""

from __future__ import annotations

from random import Random

import pytest

from playbooks.lab.exposition import Family
from playbooks.lab.gpu import IDLE, POWER_CAP, DeviceDetail, Nvlinks, PcieLink, detail
from playbooks.lab.gpu_nvml import NvmlTarget
from playbooks.lab.hardware import GPUS, Gpu
from playbooks.lab.offload import Offload
from probes.rules import RuleSet

WORK = {"prefill": 0.1, "decode": 0.8}


def device(**state: object) -> DeviceDetail:
    gpu = Gpu(0, "GPU-1", "node-a", GPUS[0], Random(1))
    return detail(gpu, 0, **state)


def observe(of: DeviceDetail, seconds: float = 5.0, **shares: float) -> None:
    """As the device does it, without an engine."""
    used = shares or WORK
    of.gpu._fill(used["prefill"], used["decode"], True)
    of.advance(seconds)


def value(families: list[Family], name: str, **labels: str) -> float:
    found = [
        number
        for family in families
        for suffix, pairs, number in family.samples
        if family.name + suffix == name and labels.items() <= dict(pairs).items()
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def raw_names(rules: RuleSet, prefix: str) -> set[str]:
    return {raw for one in rules.vocabulary if one.name.startswith(prefix) for raw in rules.sources(one.name)}


@pytest.mark.parametrize("told_by", ["dcgm", "nvml"])
def test_every_family_is_one_that_the_rule_files_read(told_by: str) -> None:
    made = device(nvlink=Nvlinks())
    observe(made)
    page = made.gpu.families() if told_by == "dcgm" else NvmlTarget("node-a", [made]).families()
    names = {f.name + ("_total" if f.kind == "counter" else "") for f in page} - {"up"}
    assert len(names) > 25
    assert names <= raw_names(RuleSet.load(), "kv:gpu_")


def test_both_pages_tell_the_same() -> None:
    made = device(nvlink=Nvlinks(errors={(4, "replay"): 20.0}), reasons=POWER_CAP, clock=0.7, replays=30.0)
    observe(made)
    dcgm, nvml = made.gpu.families(), NvmlTarget("node-a", [made]).families()
    assert value(dcgm, "DCGM_FI_DEV_SM_CLOCK") * 1e6 == value(nvml, "kvscope_nvml_sm_clock_hertz")
    assert value(dcgm, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS") == value(nvml, "kvscope_nvml_clock_event_reasons") == 4
    replays = value(dcgm, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER")
    assert replays == value(nvml, "kvscope_nvml_pcie_replays_total") > 50
    repaired = value(dcgm, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL")
    assert repaired == value(nvml, "kvscope_nvml_nvlink_errors_total", link="4", error="replay") > 30
    assert not made.gpu.dcgm, "the other source took it over"


def test_an_idle_device_sleeps_whatever_else_is_wrong_with_it() -> None:
    made = device(reasons=POWER_CAP, clock=0.5, held={"power": 1.0})
    observe(made, prefill=0.0, decode=0.0)
    page = made.gpu.families()
    assert value(page, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS") == IDLE
    assert value(page, "DCGM_FI_DEV_PCIE_LINK_GEN") == 1
    assert value(page, "DCGM_FI_DEV_PCIE_LINK_WIDTH") == 16
    assert value(page, "DCGM_FI_DEV_POWER_VIOLATION") == 0


def test_waiting_and_copying_show_on_the_device() -> None:
    plain, waiting = device(), device(waits=0.5, copies_in=2e10)
    for one in (plain, waiting):
        observe(one)
    for name in ("GR_ENGINE_ACTIVE", "DRAM_ACTIVE", "PIPE_TENSOR_ACTIVE"):
        assert waiting.gpu.gauge(name) == pytest.approx(0.5 * plain.gpu.gauge(name), rel=0.2)
    assert waiting.gpu.gauge("PCIE_RX_BYTES") > 1.8e10 > 1e9 > plain.gpu.gauge("PCIE_RX_BYTES")
    assert waiting.gpu.gauge("POWER_USAGE") < plain.gpu.gauge("POWER_USAGE")


@pytest.mark.parametrize(("generation", "gigabytes"), [(3, 16), (4, 32), (5, 64)])
def test_a_link_has_its_generations_rate(generation: int, gigabytes: float) -> None:
    assert PcieLink(generation, generation).rate == gigabytes * 1e9


def test_an_offload_connector_counts_what_it_copies() -> None:
    offload = Offload("m", Random(3), loads=1e10, stores=0.0, speed=2e10)
    before, after = offload(5.0), offload(5.0)
    moved = value(after, "vllm:kv_offload_load_bytes_total") - value(before, "vllm:kv_offload_load_bytes_total")
    took = value(after, "vllm:kv_offload_load_time_total") - value(before, "vllm:kv_offload_load_time_total")
    assert moved == pytest.approx(5e10, rel=0.2)
    assert moved / took == pytest.approx(2e10, rel=0.01)
    stored = [value(page, "vllm:kv_offload_store_bytes_total") for page in (before, after)]
    assert stored[0] == stored[1]
