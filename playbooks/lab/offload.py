"""Counters of an engine's offload connector, as vLLM 0.24 and later tells them on its page."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from .exposition import Family, LabelPairs


@dataclass
class Offload:
    """What a connector copies between device and host memory, bytes a second; ``speed`` is that of one copy.

    Give it to a pod as ``pod.more``.
    """

    model: str
    rng: Random
    loads: float = 0.0
    stores: float = 0.0
    speed: float = 2.2e10

    def __post_init__(self) -> None:
        self._bytes = {"load": self.rng.uniform(1e11, 1e13), "store": self.rng.uniform(1e11, 1e13)}
        self._seconds = {name: size / self.speed for name, size in self._bytes.items()}

    def __call__(self, seconds: float) -> list[Family]:
        labels: LabelPairs = (("engine", "0"), ("model_name", self.model))
        found = []
        for name, rate in (("load", self.loads), ("store", self.stores)):
            moved = rate * seconds * abs(self.rng.gauss(1.0, 0.03))
            self._bytes[name] += moved
            self._seconds[name] += min(seconds, moved / self.speed)
            prefix = f"vllm:kv_offload_{name}"
            found.append(Family(f"{prefix}_bytes", "counter", "Bytes").one(float(round(self._bytes[name])), labels))
            found.append(Family(f"{prefix}_time", "counter", "Time").one(round(self._seconds[name], 4), labels))
        return found
