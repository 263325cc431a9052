"""A GPU in detail: what dcgm-exporter tells with kvscope's own list of counters, and what a scene does to it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from .exposition import Family, LabelPairs
from .hardware import Gpu

IDLE, POWER_CAP, SLOWDOWN, SOFTWARE_HEAT, HARDWARE_HEAT, BRAKE = 1, 4, 8, 32, 64, 128
"""Bits of the clock-event reasons, as NVML defines them."""
AT_WORK = 0.02
"""Share of the time from which on a device is no idle one: it clocks up, and its link is trained up."""
LANE_BYTES = 1.25e8
"""Bytes a second of a PCIe lane of generation 0, each generation twice the one before: 250 MB/s for generation 1."""
NVLINK_ERRORS = {
    "crc_flit": "CRC_FLIT_ERROR_COUNT_TOTAL",
    "crc_data": "CRC_DATA_ERROR_COUNT_TOTAL",
    "replay": "REPLAY_ERROR_COUNT_TOTAL",
    "recovery": "RECOVERY_ERROR_COUNT_TOTAL",
}
"""Kinds of errors on NVLink 4 and before, with DCGM's names for them (of all links together)."""


@dataclass
class PcieLink:
    """A PCIe link: what it runs at under load, and what it could."""

    generation: int = 5
    generation_max: int = 5
    lanes: int = 16
    lanes_max: int = 16

    @property
    def rate(self) -> float:
        """Bytes a second in each direction."""
        return LANE_BYTES * float(2**self.generation) * self.lanes


@dataclass
class Nvlinks:
    """The NVLink ports of a device. ``moves`` are bytes a second in each direction over all of them; ``errors`` are
    errors a second by (link, kind)."""

    count: int = 18
    moves: float = 2.4e9
    errors: dict[tuple[int, str], float] = field(default_factory=dict)
    counted: Counter[tuple[int, str]] = field(default_factory=Counter)

    def advance(self, seconds: float, rng: Random) -> None:
        for key, rate in self.errors.items():
            self.counted[key] += _arrivals(rate * seconds, rng)

    def total(self, kind: str) -> float:
        return float(sum(count for (_link, of), count in self.counted.items() if of == kind))


@dataclass
class DeviceDetail:
    """The state of one device beyond load and power.

    ``reasons`` hold its clocks down to ``clock`` (a share of the highest) while it works, for the share ``held`` of
    the time by kind (power, thermal); ``limit`` is its power limit as a share of the usual one, ``heat`` degrees
    beyond the usual. ``roofline`` is the share of the memory's cycles that decoding uses (None: as the plain device),
    ``waits`` the share of a step in which nothing runs on it. ``copies_in`` and ``copies_out`` are bytes a second over
    PCIe beside the usual ones, ``replays`` packets a second that are sent again.
    """

    gpu: Gpu
    rng: Random
    pcie: PcieLink = field(default_factory=PcieLink)
    nvlink: Nvlinks | None = None
    reasons: int = 0
    held: dict[str, float] = field(default_factory=dict)
    clock: float = 1.0
    heat: float = 0.0
    limit: float = 1.0
    roofline: float | None = None
    waits: float = 0.0
    copies_in: float = 0.0
    copies_out: float = 0.0
    replays: float = 0.0
    _counts: Counter[str] = field(default_factory=Counter)
    _works: bool = False

    def shape(self, gauges: dict[str, float], prefill: float, decode: float) -> None:
        self._works = prefill + decode > AT_WORK
        noise = abs(self.rng.gauss(1.0, 0.02))
        if self.roofline is not None:
            gauges["DRAM_ACTIVE"] = min(1.0, (0.22 * prefill + self.roofline * decode) * noise)
        if self._works:
            gauges["SM_CLOCK"] = float(round(gauges["SM_CLOCK"] * self.clock * abs(self.rng.gauss(1.0, 0.008)), -1))
            gauges["SM_CLOCK"] = min(gauges["SM_CLOCK"], float(self.gpu.model.sm_clock))
            gauges["GPU_TEMP"] += self.heat
        for name in ("GR_ENGINE_ACTIVE", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE"):
            gauges[name] *= 1 - self.waits
        idle = self.gpu.model.idle_w
        gauges["POWER_USAGE"] = idle + (gauges["POWER_USAGE"] - idle) * (1 - 0.9 * self.waits) * self.clock**1.5
        gauges["PCIE_RX_BYTES"] += float(round(self.copies_in * noise))
        gauges["PCIE_TX_BYTES"] += float(round(self.copies_out * noise))

    def advance(self, seconds: float) -> None:
        for kind in ("power", "thermal"):
            share = self.held.get(kind, 0.0) if self._works else 0.0
            self._counts[kind] += round(1e9 * seconds * min(1.0, share * abs(self.rng.gauss(1.0, 0.1))))
        self._counts["replays"] += _arrivals(self.replays * seconds, self.rng)
        if self.nvlink is not None:
            self.nvlink.advance(seconds, self.rng)

    def burst(self, replays: int) -> None:
        """So many packets are sent again at once."""
        self._counts["replays"] += replays

    def counted(self, name: str) -> float:
        """A counter so far: ``replays`` in packets, ``power`` and ``thermal`` in nanoseconds."""
        return float(self._counts[name])

    @property
    def generation(self) -> int:
        """What the link runs at now: an idle one saves power."""
        return self.pcie.generation if self._works else 1

    @property
    def reasons_now(self) -> int:
        return self.reasons if self._works else IDLE

    @property
    def power_limit(self) -> int:
        """Watts that it may draw."""
        return round(self.gpu.model.peak_w * 1.1 * self.limit)

    def families(self, labels: LabelPairs) -> list[Family]:
        pcie = self.pcie
        gauges = {
            "MAX_SM_CLOCK": self.gpu.model.sm_clock, "CLOCKS_EVENT_REASONS": self.reasons_now,
            "ENFORCED_POWER_LIMIT": self.power_limit, "PCIE_LINK_GEN": self.generation,
            "PCIE_MAX_LINK_GEN": pcie.generation_max, "PCIE_LINK_WIDTH": pcie.lanes,
            "PCIE_MAX_LINK_WIDTH": pcie.lanes_max,
        }  # fmt: skip
        found = [
            Family(f"DCGM_FI_DEV_{name}", "gauge", name).one(float(value), labels) for name, value in gauges.items()
        ]
        for kind in ("power", "thermal"):
            name = f"DCGM_FI_DEV_{kind.upper()}_VIOLATION"
            found.append(Family(name, "unknown", "Nanoseconds").one(self.counted(kind), labels))
        return found if self.nvlink is None else [*found, *self._nvlink(self.nvlink, labels)]

    def _nvlink(self, nvlink: Nvlinks, labels: LabelPairs) -> list[Family]:
        found = [
            Family(f"DCGM_FI_DEV_NVLINK_{name}", "unknown", kind).one(nvlink.total(kind), labels)
            for kind, name in NVLINK_ERRORS.items()
        ]
        for direction in ("TX", "RX"):
            moved = round(nvlink.moves * abs(self.rng.gauss(1.0, 0.05)))
            found.append(Family(f"DCGM_FI_PROF_NVLINK_{direction}_BYTES", "gauge", "Rate").one(float(moved), labels))
        return found


def _arrivals(mean: float, rng: Random) -> int:
    """How many of what comes by chance came, ``mean`` being expected."""
    if mean <= 0:
        return 0
    if mean > 50:
        return max(0, round(rng.gauss(mean, mean**0.5)))
    count, left = 0, rng.expovariate(1.0)
    while left < mean:
        count, left = count + 1, left + rng.expovariate(1.0)
    return count


def detail(gpu: Gpu, seed: object, **state: object) -> DeviceDetail:
    """Give a device its detail, of an own random sequence, and answer with it."""
    made = DeviceDetail(gpu, Random(f"{seed}/{gpu.uuid}/detail"), **state)  # type: ignore[arg-type]
    gpu.detail = made
    return made


@dataclass
class Spare:
    """A device on which nobody runs anything, told by its node's dcgm-exporter."""

    gpu: Gpu

    def __post_init__(self) -> None:
        self.target: LabelPairs = (("instance", f"{self.gpu.node}:9400"), ("job", "dcgm"))
        self.gpu.observe(None, 1.0)

    def observe(self, seconds: float) -> None:
        self.gpu.observe(None, seconds)

    def families(self) -> list[Family]:
        return self.gpu.families()
