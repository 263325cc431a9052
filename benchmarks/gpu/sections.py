"""The sections: their order, what time they have, and what they need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """`module` holds `run(check)`. `budget_s` is what it should take at most on a GPU, compiling
    included. `needs_gpu`: why a CPU cannot stand in; empty where it can."""

    name: str
    module: str
    budget_s: float
    needs_gpu: str = ""


SECTIONS = (
    Section("moves", "gpu.check_moves", 20),
    Section("append", "gpu.check_append", 20),
    Section("tables", "gpu.check_tables", 15),
    Section("bitmap", "gpu.check_bitmap", 30),
    Section("decode", "gpu.check_decode", 75),
    Section("copy rates", "gpu.time_moves", 25),
    Section("decode rates", "gpu.time_decode", 45),
    Section("small calls", "gpu.time_small", 25),
    Section("decode loop", "gpu.decode_loop", 45),
    Section("telemetry", "gpu.telemetry", 20, "NVML tells nothing without a driver"),
    Section("between processes", "gpu.between", 40),
    Section("operators", "gpu.check_operators", 25),
    Section("nsys", "gpu.nsys", 30, "it is a GPU's work that it records"),
)
"""In the order of what would be missed most. The sum is what the command has (`runner.LIMIT_S`), less starting."""


def named(names: str) -> tuple[Section, ...]:
    """The sections of a comma-separated list, in their own order. Raises `ValueError` for one that there is not."""
    if not names:
        return SECTIONS
    wanted = [name.strip() for name in names.split(",")]
    known = {section.name for section in SECTIONS}
    for name in wanted:
        if name not in known:
            raise ValueError(f"no section {name!r}; there are {', '.join(sorted(known))}")
    return tuple(section for section in SECTIONS if section.name in wanted)
