"""GPUs by what decides a block size: how much memory, and how fast it can be read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstore.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU: bytes of memory, and bytes per second at the memory's peak (or as measured)."""

    name: str
    memory_bytes: float
    bytes_per_s: float
    source: str


def _card(name: str, memory_gb: float, gb_per_s: float, source: str) -> Card:
    return Card(name, memory_gb * 1e9, gb_per_s * 1e9, source)


CARDS = {
    card.name: card
    for card in (
        _card("A100-40G", 40, 1555, "NVIDIA A100 datasheet (SXM and PCIe, HBM2)"),
        _card("A100-80G", 80, 2039, "NVIDIA A100 datasheet (SXM, HBM2e)"),
        _card("A100-80G-PCIe", 80, 1935, "NVIDIA A100 datasheet (PCIe, HBM2e)"),
        _card("H100", 80, 3350, "NVIDIA H100 datasheet (SXM, HBM3)"),
        _card("H100-PCIe", 80, 2000, "NVIDIA H100 PCIe product brief PB-11133 (HBM2e)"),
        _card("H100-NVL", 94, 3900, "NVIDIA H100 datasheet (NVL, HBM3)"),
        _card("H200", 141, 4800, "NVIDIA H200 datasheet (SXM and NVL, HBM3e)"),
        _card("B200", 180, 8000, "NVIDIA HGX B200 datasheet (HBM3e; 1.44 TB for eight)"),
        _card("L40S", 48, 864, "NVIDIA L40S datasheet (GDDR6)"),
        _card("L4", 24, 300, "NVIDIA L4 datasheet (GDDR6)"),
        _card("A10", 24, 600, "NVIDIA A10 datasheet (GDDR6)"),
        _card("RTX-4090", 24, 1008, "NVIDIA Ada GPU architecture whitepaper (GDDR6X)"),
        _card("MI300X", 192, 5300, "AMD Instinct MI300X data sheet (HBM3)"),
    )
}
"""Vendors' figures, read as powers of ten. Most cards have that many GiB, so the memory is up to 7 % more."""

_MOST_BYTES = 1 << 20
"""Of a card's file (policy)."""

LEAST_GB, MOST_GB = 1e-3, 1e7
"""What memory and rate of a card can be, in GB and GB/s (policy): beyond it every share is nonsense."""

_OTHER_NAMES = {"a100": "A100-80G", "h100-sxm": "H100", "h100-80g": "H100", "4090": "RTX-4090"}


def card_of(name: str) -> Card:
    """The card called `name`, or described by the JSON file `name` (`name`, `memory_bytes`, `bytes_per_s`).

    Raises `BadRequest`.
    """
    wanted = _plain(name)
    for known in CARDS:
        if _plain(known) == wanted:
            return CARDS[known]
    if name.lower() in _OTHER_NAMES:
        return CARDS[_OTHER_NAMES[name.lower()]]
    path = Path(name)
    if name.endswith(".json") or path.is_file():
        return _read(path)
    raise BadRequest(f"no GPU {name!r}; there are {', '.join(CARDS)}, or a JSON file (name, memory_bytes, bytes_per_s)")


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "").removesuffix("b")


def _read(path: Path) -> Card:
    try:
        if path.exists() and not path.is_file():
            raise BadRequest(f"GPU file {path}: no regular file")
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise BadRequest(f"GPU file {path}: more than {_MOST_BYTES >> 20} MiB are no description of a GPU")
        values: Any = json.loads(data.decode("utf-8"))
    except OSError as error:
        raise BadRequest(f"GPU file {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"GPU file {path}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise BadRequest(f"GPU file {path}: a JSON object is expected (name, memory_bytes, bytes_per_s)")
    name = values.get("name", path.stem)
    if not isinstance(name, str) or not name.isprintable():
        raise BadRequest(f"GPU file {path}: 'name' must be a text")
    numbers = [_within(values.get(field), field, path) for field in ("memory_bytes", "bytes_per_s")]
    return Card(name, numbers[0], numbers[1], f"file {path.name}")


def _within(value: object, field: str, path: Path) -> float:
    least, most = LEAST_GB * 1e9, MOST_GB * 1e9
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise BadRequest(f"GPU file {path}: {field!r} must be a number, {least:g} … {most:g}, not {value!r:.40}")
    return float(value)
