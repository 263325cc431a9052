"""Scenarios of the device itself: its memory at the limit, its clocks held down, or the host too slow for it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from .config import EngineConfig, StepCost
from .fleet import Fleet, Pod, make_gpu
from .gpu import (
    BRAKE,
    HARDWARE_HEAT,
    POWER_CAP,
    SLOWDOWN,
    SOFTWARE_HEAT,
    DeviceDetail,
    Nvlinks,
    PcieLink,
    Spare,
    detail,
)
from .gpu_nvml import NvmlTarget
from .hardware import GPUS, GpuModel
from .scenarios import Cast, Stage, Truth, scenario
from .scenes_healthy import healthy, plain
from .workload import Lengths, SharedPrefixes, Stream

LINKS = {"NVIDIA H100 80GB HBM3": (5, 18), "NVIDIA H200": (5, 18), "NVIDIA A100-SXM4-80GB": (4, 12)}
"""PCIe generation and NVLink ports of the cards that have some; the others: generation 4 and none."""


def pcie_of(model: GpuModel) -> PcieLink:
    """The link that a card of this kind comes with."""
    generation = LINKS.get(model.name, (4, 0))[0]
    return PcieLink(generation, generation)


@dataclass
class Detailed:
    """Pods with every counter of their devices; the seed picks the device at fault."""

    cast: Cast
    pods: list[Pod]
    fleet: Fleet
    devices: list[DeviceDetail]
    at_fault: int

    @property
    def pod(self) -> Pod:
        return self.pods[self.at_fault]

    @property
    def device(self) -> DeviceDetail:
        return self.devices[self.at_fault]

    def slower(self, factor: float) -> None:
        """Every step of the engine on the device at fault takes so many times as long from now on."""
        assert self.pod.engine is not None
        self.pod.engine.step_factor = factor

    def over_nvml(self) -> None:
        """The devices are told by the target `nvml`; dcgm-exporter is not there."""
        node = self.fleet.nodes[0]
        node.beside.append(NvmlTarget(node.name, self.devices))

    def truth(self, cause: str, onset_s: float | None, why: str, must_not: tuple[str, ...] = ()) -> Truth:
        """On the device at fault, wherever it is told."""
        instance = self.pod.gpu.node if not self.pod.gpu.dcgm else f"{self.pod.gpu.node}:9400"
        return Truth(cause, {"instance": instance, "gpu": str(self.pod.gpu.index)}, onset_s, must_not=must_not, why=why)

    def stage(self, truth: Truth) -> Stage:
        return Stage(self.fleet, truth)


def detailed(cast: Cast, pods: list[Pod], *, spare: bool = False) -> Detailed:
    """Give every device its detail; with ``spare`` there is one more, on which nobody runs anything."""
    fleet = cast.fleet(pods)
    devices = [detail(pod.gpu, cast.seed, pcie=pcie_of(pod.gpu.model)) for pod in pods]
    for device in devices:
        device.replays = 0.03
        if device.gpu.model.name in LINKS:
            count = LINKS[device.gpu.model.name][1]
            device.nvlink = Nvlinks(count, errors={(3, "crc_flit"): 1.5, (7, "crc_flit"): 0.4})
    if spare:
        rng = Random(f"{cast.seed}/spare")
        idle = make_gpu(pods[0].gpu.node, len(pods), rng, pods[0].gpu.model)
        detail(idle, cast.seed, pcie=pcie_of(idle.model))
        fleet.nodes[0].beside.append(Spare(idle))
    return Detailed(cast, pods, fleet, devices, cast.rng.randrange(len(pods)))


@scenario("healthy-gpu-counters")
def counters(cast: Cast) -> Stage:
    """Every counter is there: a few replays and damaged flits, as always, and a spare device that sleeps."""
    made = detailed(cast, plain(cast), spare=True)
    return made.stage(healthy("The spare device's clocks and link are down to save power; nothing else is odd."))


# --- memory bandwidth --------------------------------------------------------------------------------------------


def long_reads(cast: Cast, rate: float, max_num_seqs: int = 256) -> Detailed:
    """Decoding that reads long shared contexts: the memory works at its limit, as it should."""
    rng = cast.rng
    cast.cost = StepCost(rng.uniform(0.011, 0.013), 4e-5, 4e-5, rng.uniform(5.6e-8, 6.4e-8), 0.04)
    cast.gpu = rng.choice(GPUS[:2])
    config = EngineConfig(num_blocks=40_000, max_num_seqs=max_num_seqs, cost=cast.cost)
    pods = cast.pods(config, config)
    family = SharedPrefixes(rng, 3, Lengths(5600, 0.05), Lengths(260, 0.5))
    for pod in pods:
        cast.load(pod, Stream(rate, family, Lengths(300, 0.4, 16, 900), cast.stream_rng(pod), max_tokens=900))
    made = detailed(cast, pods)
    made.device.roofline = rng.uniform(0.9, 0.94)
    return made


@scenario("hbm-bandwidth-bound")
def bandwidth(cast: Cast) -> Stage:
    """The batch on one device grows from the onset on; its memory was at the limit before."""
    made = long_reads(cast, cast.rng.uniform(1.8, 2.1))
    factor = cast.rng.uniform(2.3, 2.5)
    for stream in made.pod.streams:
        made.fleet.events.at(cast.onset, lambda now, s=stream: s.set_scale(factor, now))  # type: ignore[misc]
    return made.stage(made.truth("hbm-bandwidth-bound", cast.onset, "Every step reads more KV than before."))


@scenario("hbm-bandwidth-bound-pods")
def bandwidth_pods(cast: Cast) -> Stage:
    """The same where the memory of both devices is at its limit, and labels say which pod has which."""
    made = long_reads(cast, cast.rng.uniform(1.8, 2.1))
    label = cast.rng.choice(("pod", "exported_pod"))
    for pod, device in zip(made.pods, made.devices, strict=True):
        device.roofline = cast.rng.uniform(0.9, 0.94)
        pod.labels = (("pod", pod.name),)
        exporter = () if label == "pod" else (("pod", "dcgm-exporter-x7k2p"),)
        device.gpu.held_by = ((label, pod.name), *exporter)
    for stream in made.pod.streams:
        made.fleet.events.at(cast.onset, lambda now, s=stream: s.set_scale(2.4, now))  # type: ignore[misc]
    return made.stage(
        made.truth("hbm-bandwidth-bound", cast.onset, "Every step of this pod reads more KV than before.")
    )


@scenario("hbm-bandwidth-bound-queue")
def bandwidth_queue(cast: Cast) -> Stage:
    """The batch limit is reached, requests queue, blocks are free: the memory is what there is no more of."""
    made = long_reads(cast, 2.0, max_num_seqs=20)
    for stream in made.pod.streams:
        stream.scale = cast.rng.uniform(2.2, 2.4)
    return made.stage(made.truth("hbm-bandwidth-bound", None, "A step cannot be faster than its reads."))


@scenario("healthy-memory-busy")
def memory_busy(cast: Cast) -> Stage:
    made = long_reads(cast, cast.rng.uniform(1.8, 2.2))
    for device in made.devices:
        device.roofline = 0.92
    return made.stage(healthy("Decoding at the memory's limit is what a GPU is bought for; nobody waits."))


# --- clocks ------------------------------------------------------------------------------------------------------


@scenario("clock-throttle-heat")
def heat(cast: Cast) -> Stage:
    """A device gets too hot and halves its clocks."""
    made = detailed(cast, plain(cast))
    factor = cast.rng.uniform(1.7, 2.1)

    def hot(_now: float) -> None:
        device = made.device
        device.reasons = SLOWDOWN | HARDWARE_HEAT if cast.rng.random() < 0.5 else SOFTWARE_HEAT
        device.held["thermal"] = 0.95
        device.clock, device.heat = 1 / factor, 27.0
        made.slower(factor)

    made.fleet.events.at(cast.onset, hot)
    return made.stage(made.truth("clock-throttle", cast.onset, "Its cooling fails."))


@scenario("clock-throttle-brake")
def brake(cast: Cast) -> Stage:
    """The power supply pulls the brake, all along; told by NVML."""
    made = detailed(cast, plain(cast))
    made.over_nvml()
    device = made.device
    device.reasons, device.clock = SLOWDOWN | BRAKE, 0.48

    def slow(_now: float) -> None:
        made.slower(1.8)

    made.fleet.events.at(-50.0, slow)
    return made.stage(made.truth("clock-throttle", None, "The supply of its chassis signals that it gives too little."))


@scenario("clock-throttle-power")
def power(cast: Cast) -> Stage:
    """Somebody lowers a device's power limit."""
    made = detailed(cast, plain(cast))
    if cast.rng.random() < 0.5:
        made.over_nvml()
    factor = cast.rng.uniform(1.6, 1.9)

    def cap(_now: float) -> None:
        made.device.reasons = POWER_CAP
        made.device.held["power"] = 0.9
        made.device.clock, made.device.limit = 1 / factor, 0.5
        made.slower(factor)

    made.fleet.events.at(cast.onset, cap)
    return made.stage(made.truth("clock-throttle", cast.onset, "It may draw half of what it did."))


@scenario("clock-throttle-power-from-the-start")
def power_always(cast: Cast) -> Stage:
    """The same all along: there is no earlier time to compare with, only the same card beside it."""
    made = detailed(cast, plain(cast))
    device = made.device
    device.reasons, device.held["power"] = POWER_CAP, 0.9
    device.clock, device.limit = cast.rng.uniform(0.55, 0.65), 0.5
    made.fleet.events.at(-50.0, lambda _now: made.slower(1 / device.clock))
    return made.stage(made.truth("clock-throttle", None, "It may draw half of what the same card beside it may."))


@scenario("healthy-power-capped")
def power_capped(cast: Cast) -> Stage:
    """Devices at their power limit, as at full work, one far below its highest clock; nothing got slower."""
    made = detailed(cast, plain(cast))
    for device in made.devices:
        device.reasons, device.clock = POWER_CAP, 0.87
        device.held["power"] = 0.6
    made.device.clock = 0.7
    return made.stage(healthy("At its power limit a device clocks down, and more the heavier its work."))


# --- the host ----------------------------------------------------------------------------------------------------


@scenario("launch-bound")
def launch(cast: Cast) -> Stage:
    """From the onset on the device waits between kernels for the host to launch the next."""
    made = detailed(cast, plain(cast))
    factor = cast.rng.uniform(1.9, 2.4)

    def lag(_now: float) -> None:
        made.device.waits = 1 - 1 / factor
        made.slower(factor)

    made.fleet.events.at(cast.onset, lag)
    truth = made.truth(
        "launch-bound", cast.onset, "CUDA graphs are off: a step is as long as it takes to launch it.",
        must_not=("healthy", "bitmap-sync", "hbm-bandwidth-bound", "clock-throttle"),
    )  # fmt: skip
    return made.stage(truth)


@scenario("launch-bound-from-the-start")
def launch_always(cast: Cast) -> Stage:
    """The same from the start: nothing to compare with, but a full batch and an idle device."""
    made = detailed(cast, plain(cast))
    factor = cast.rng.uniform(2.8, 3.4)
    made.device.waits = 1 - 1 / factor

    def lag(_now: float) -> None:
        made.slower(factor)

    made.fleet.events.at(-55.0, lag)
    return made.stage(made.truth("launch-bound", None, "It was started without CUDA graphs."))


@scenario("host-cpu-starved")
def starved(cast: Cast) -> Stage:
    """The device waits for the host as well, and the host's tasks wait for a CPU."""
    made = detailed(cast, plain(cast))
    factor = cast.rng.uniform(2.3, 2.8)

    def starve(_now: float) -> None:
        made.device.waits = 1 - 1 / factor
        made.fleet.nodes[0].pressure = cast.rng.uniform(0.5, 0.8)
        made.slower(factor)

    made.fleet.events.at(cast.onset, starve)
    return made.stage(Truth("unknown", also_acceptable=("host-cpu-starved",), why="A neighbour took the host's CPUs."))
