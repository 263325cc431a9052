"""GPUs of one host and the way between each two of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from kvstore.errors import BadRequest

SCHEMA = "kvscope.topology/1"
SELF = "X"
UNKNOWN = "?"
LEGEND = {
    "NV": "NVLink, over so many links",
    "PIX": "PCIe, one switch",
    "PXB": "PCIe, several switches",
    "PHB": "PCIe, through the host's bridge",
    "NODE": "PCIe and the fabric within a NUMA node",
    "SYS": "the fabric between NUMA nodes",
    UNKNOWN: "not known",
}
"""The words of `nvidia-smi topo -m`, nearest first: who reads this reads that, too."""
_KINDS = list(LEGEND)
_WORD = re.compile(r"NV[1-9]\d{0,2}|PIX|PXB|PHB|NODE|SYS|\?")
_MOST_GPUS = 256


@dataclass(frozen=True, slots=True)
class Gpu:
    """`name` as the file or NVML has it (`gpu0`); `bus` as `0000:1a:00.0`, "" where it is not known."""

    name: str
    bus: str = ""
    uuid: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Way:
    """Between two GPUs. `word` of `LEGEND` (`NV18` for eighteen links); `bytes_per_second` as measured, None: not."""

    word: str
    bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        if not _WORD.fullmatch(self.word):
            raise BadRequest(f"no way {self.word!r}: NV1 …, {', '.join(kind for kind in _KINDS if kind != 'NV')} are")
        rate = self.bytes_per_second
        if rate is not None and not 0 < rate < float("inf"):
            raise BadRequest(f"bytes_per_second {rate!r}: a rate above 0 is expected")

    @property
    def links(self) -> int:
        """NVLinks in use; 0 for other ways."""
        return int(self.word[2:]) if self.word.startswith("NV") else 0

    @property
    def nearness(self) -> tuple[float, int, int]:
        """Sorts the best first: by what was measured, else behind all that was, by kind and links."""
        kind = "NV" if self.links else self.word
        return (-(self.bytes_per_second or 0.0), _KINDS.index(kind), -self.links)


@dataclass(frozen=True, slots=True)
class Topology:
    """`ways[a, b]` by names; both directions are one way unless they were measured. `source`: where this is from."""

    gpus: tuple[Gpu, ...]
    ways: dict[tuple[str, str], Way] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        names = [gpu.name for gpu in self.gpus]
        if len(names) > _MOST_GPUS:
            raise BadRequest(f"{len(names)} GPUs: no host has so many ({_MOST_GPUS} are taken)")
        if len(set(names)) != len(names):
            raise BadRequest("two GPUs have the same name")
        for one, other in self.ways:
            if one not in names or other not in names or one == other:
                raise BadRequest(f"a way between {one!r} and {other!r}: it joins two GPUs that are listed")

    def way(self, one: str, other: str) -> Way:
        """From `one` to `other`; unknown where nothing said. Raises `BadRequest` for a GPU that is not there."""
        for name in (one, other):
            if all(gpu.name != name for gpu in self.gpus):
                raise BadRequest(f"no GPU {name!r}; there are {', '.join(gpu.name for gpu in self.gpus) or 'none'}")
        return self.ways.get((one, other)) or self.ways.get((other, one)) or Way(UNKNOWN)

    def ranked(self, name: str) -> list[tuple[str, Way]]:
        """The other GPUs as seen from one, the best reached first: by measured bandwidth, where there is any, then by
        the kind of way; those at an equal distance in the order of their listing."""
        others = [(gpu.name, self.way(name, gpu.name)) for gpu in self.gpus if gpu.name != name]
        return sorted(others, key=lambda pair: pair[1].nearness)

    def at(self, bus: str) -> Gpu | None:
        """The GPU that sits there."""
        return next((gpu for gpu in self.gpus if gpu.bus == bus), None)

    def as_dict(self) -> dict[str, Any]:
        """As the file has it; `file.parsed` reads it back."""
        gpus = [
            {key: text for key in ("name", "bus", "uuid", "model") if (text := getattr(gpu, key))} for gpu in self.gpus
        ]
        links = []
        for (one, other), way in self.ways.items():
            entry: dict[str, Any] = {"between": [one, other], "way": way.word}
            if way.bytes_per_second is not None:
                entry["bytes_per_second"] = way.bytes_per_second
            links.append(entry)
        return {"schema": SCHEMA, "source": self.source, "gpus": gpus, "links": links}


def bus_of(text: str) -> str:
    """A PCI bus id in one form: NVML writes domains of eight digits, CUDA of four."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest}" if rest else text.strip().lower()
