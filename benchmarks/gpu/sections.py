"""The sections: their order, what time they have, and what they need."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Section:
    """`module` of this package holds `run(check)`. `budget_s` is what it should take at most on a GPU, compiling
    included. `needs_gpu`: why a CPU cannot stand in; empty where it can."""

    name: str
    module: str
    budget_s: float
    needs_gpu: str = ""

    def load(self) -> Callable[[Any], None]:
        """`run` of the section's module."""
        run: Callable[[Any], None] = importlib.import_module(f"gpu.{self.module}").run
        return run


SECTIONS = (
    Section("moves", "check_moves", 20),
    Section("append", "check_append", 20),
    Section("tables", "check_tables", 15),
    Section("bitmap", "check_bitmap", 30),
    Section("decode", "check_decode", 75),
    Section("copy rates", "time_moves", 25),
    Section("decode rates", "time_decode", 45),
    Section("small calls", "time_small", 25),
    Section("decode loop", "decode_loop", 45),
    Section("telemetry", "telemetry", 20, "NVML tells nothing without a driver"),
    Section("between processes", "between", 40),
    Section("operators", "check_operators", 25),
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
