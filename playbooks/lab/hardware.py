"""What stands around an engine: its GPU as dcgm-exporter shows it, and its node as node_exporter does."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from .exposition import Family, LabelPairs, merged
from .scheduler import Engine

DCGM_GAUGES = ("GPU_UTIL", "MEM_COPY_UTIL", "POWER_USAGE", "GPU_TEMP", "SM_CLOCK", "MEM_CLOCK", "FB_USED", "FB_FREE",
               "XID_ERRORS")  # fmt: skip
PROFILING = ("GR_ENGINE_ACTIVE", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE", "PCIE_RX_BYTES", "PCIE_TX_BYTES")


@dataclass(slots=True)
class GpuModel:
    """A GPU type: idle and peak power (W), SM clock (MHz), memory (MiB)."""

    name: str = "NVIDIA H100 80GB HBM3"
    idle_w: float = 92.0
    peak_w: float = 610.0
    sm_clock: int = 1980
    mem_clock: int = 2619
    memory_mib: int = 81_000
    reserved: float = 0.9


GPUS = (
    GpuModel(),
    GpuModel("NVIDIA H200", 96.0, 640.0, 1980, 3201, 143_000),
    GpuModel("NVIDIA A100-SXM4-80GB", 62.0, 372.0, 1410, 1593, 81_000),
    GpuModel("NVIDIA L40S", 36.0, 330.0, 2520, 9001, 46_000),
)


@dataclass
class Gpu:
    """One device; ``observe`` turns the busy seconds of its engine since the last call into gauges."""

    index: int
    uuid: str
    node: str
    model: GpuModel
    rng: Random
    blind: bool = False
    xid: int = 0
    detail: Detail | None = None
    """What a counters list beyond the exporter's default asks for; None: the default."""
    held_by: LabelPairs = ()
    """Labels that say whose it is, where the exporter knows (Kubernetes)."""
    dcgm: bool = True
    """Whether dcgm-exporter tells of it; else another source beside the node does."""
    _busy: tuple[float, float] = (0.0, 0.0)
    _gauges: dict[str, float] = field(default_factory=dict)

    def observe(self, engine: Engine | None, seconds: float) -> None:
        """Update the gauges; ``engine`` None is a device without work."""
        prefill = decode = 0.0
        if engine is not None:
            now = (engine.busy_prefill_s, engine.busy_decode_s)
            prefill = max(0.0, now[0] - self._busy[0]) / seconds
            decode = max(0.0, now[1] - self._busy[1]) / seconds
            self._busy = now
        self._fill(min(1.0, prefill), min(1.0, decode), engine is not None)
        if self.detail is not None:
            self.detail.advance(seconds)

    def reset(self) -> None:
        """A new process: its busy seconds start again."""
        self._busy = (0.0, 0.0)

    def _fill(self, prefill: float, decode: float, alive: bool) -> None:
        model, rng = self.model, self.rng
        busy = min(1.0, prefill + decode)
        active = busy * rng.gauss(0.93, 0.015)
        power = model.idle_w + (model.peak_w - model.idle_w) * (0.95 * prefill + 0.62 * decode)
        used = model.memory_mib * model.reserved if alive else 4.0
        noise = rng.gauss(1.0, 0.025)
        self._gauges = {
            "GPU_UTIL": float(round(100 * min(1.0, busy * rng.gauss(0.985, 0.015)))),
            "MEM_COPY_UTIL": float(round(100 * min(1.0, 0.42 * decode * noise))),
            "POWER_USAGE": power * noise,
            "GPU_TEMP": float(round(31 + 36 * (power - model.idle_w) / (model.peak_w - model.idle_w) + rng.random())),
            "SM_CLOCK": float(model.sm_clock if busy > 0.02 else 345),
            "MEM_CLOCK": float(model.mem_clock),
            "FB_USED": float(round(used)),
            "FB_FREE": float(round(model.memory_mib - used)),
            "XID_ERRORS": float(self.xid),
            "GR_ENGINE_ACTIVE": min(1.0, active),
            "PIPE_TENSOR_ACTIVE": min(1.0, (0.55 * prefill + 0.06 * decode) * noise),
            "DRAM_ACTIVE": min(1.0, (0.22 * prefill + 0.5 * decode) * noise),
            "PCIE_RX_BYTES": float(round(9e7 * busy * abs(noise) + 2e5)),
            "PCIE_TX_BYTES": float(round(6e7 * busy * abs(noise) + 2e5)),
        }
        if self.detail is not None:
            self.detail.shape(self._gauges, prefill, decode)
        if self.blind:
            self._gauges.update(dict.fromkeys(PROFILING, 0.0))

    @property
    def labels(self) -> LabelPairs:
        own = (("Hostname", self.node), ("UUID", self.uuid), ("gpu", str(self.index)), ("modelName", self.model.name))
        return merged(own, *self.held_by)

    def gauge(self, name: str) -> float:
        """A gauge by DCGM's name for it, without its prefix; 0 before the first observation."""
        return self._gauges.get(name, 0.0)

    def families(self) -> list[Family]:
        """What dcgm-exporter tells of it."""
        labels = self.labels
        found = [
            Family(f"DCGM_FI_DEV_{name}", "gauge", name).one(self._gauges.get(name, 0.0), labels)
            for name in DCGM_GAUGES
        ]
        found += [
            Family(f"DCGM_FI_PROF_{name}", "gauge", name).one(self._gauges.get(name, 0.0), labels) for name in PROFILING
        ]
        replays = 0.0 if self.detail is None else self.detail.counted("replays")
        found.append(Family("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "unknown", "PCIe replays").one(replays, labels))
        return found if self.detail is None else [*found, *self.detail.families(labels)]


class Detail(Protocol):
    """A device in more detail; ``prefill`` and ``decode`` are shares of the time."""

    def shape(self, gauges: dict[str, float], prefill: float, decode: float) -> None:
        """Change the gauges that were observed, as the device's state has it."""

    def advance(self, seconds: float) -> None: ...

    def counted(self, name: str) -> float: ...

    def families(self, labels: LabelPairs) -> list[Family]: ...


class Beside(Protocol):
    """Something else of a host that is scraped, with the target's labels under which it appears."""

    target: LabelPairs

    def observe(self, seconds: float) -> None: ...

    def families(self) -> list[Family]: ...


@dataclass
class Node:
    """One host: pressure, load, memory and network, all quiet."""

    name: str
    rng: Random
    cores: int = 96
    pressure: float = 0.0
    """Share of the time in which some task waits for a CPU, beyond the usual."""
    beside: list[Beside] = field(default_factory=list)
    _waiting: float = 0.0
    _received: float = 0.0
    _sent: float = 0.0

    def __post_init__(self) -> None:
        self._waiting = self.rng.uniform(50, 4000)
        self._received = self.rng.uniform(1e10, 1e12)
        self._sent = self.rng.uniform(1e10, 1e12)
        self._memory = self.rng.choice((1024, 1536, 2048)) * 2**30

    def observe(self, seconds: float, requests: float) -> None:
        """Advance the counters by ``seconds``, with ``requests`` answered in them."""
        rng = self.rng
        self._waiting += seconds * (abs(rng.gauss(0.012, 0.004)) + self.pressure)
        self._received += seconds * abs(rng.gauss(9e4, 2e4)) + requests * 9_000
        self._sent += seconds * abs(rng.gauss(7e4, 2e4)) + requests * 14_000

    def carry(self, received: float = 0.0, sent: float = 0.0) -> None:
        """Bytes that cross its network interface besides."""
        self._received += received
        self._sent += sent

    def families(self) -> list[Family]:
        device: LabelPairs = (("device", "eth0"),)
        free = self._memory * (0.71 + 0.004 * self.rng.random())
        return [
            Family("node_load1", "gauge", "1m load average.").one(round(abs(self.rng.gauss(7.5, 0.6)), 2)),
            Family("node_memory_MemTotal_bytes", "gauge", "Memory.").one(float(self._memory)),
            Family("node_memory_MemAvailable_bytes", "gauge", "Memory available.").one(float(round(free))),
            Family("node_network_receive_bytes", "counter", "Network bytes in.").one(round(self._received), device),
            Family("node_network_transmit_bytes", "counter", "Network bytes out.").one(round(self._sent), device),
            Family("node_pressure_cpu_waiting_seconds", "counter", "CPU pressure.").one(round(self._waiting, 3)),
        ]
