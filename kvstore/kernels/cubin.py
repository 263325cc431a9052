"""What the code of a compiled kernel takes and does, read from the cubin with NVIDIA's own disassemblers.

Both tools come with triton; neither needs a driver or a card. Nothing here imports triton but to ask where they lie.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_REGISTERS = re.compile(r"REG:(\d+)")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)((?:\.\w+)*)")
_LOCAL = frozenset({"LDL", "STL"})
_GLOBAL = frozenset({"LDG", "STG", "LDGSTS"})
_SIZES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Code:
    """`registers` a thread; `spill_bytes`: bytes a thread moves to and from local memory, each instruction counted once
    (what `ptxas -v` calls spill stores and spill loads); `wide` of `accesses` instructions that load from or store to
    global memory move 16 bytes or more a thread."""

    registers: int
    spill_bytes: int
    wide: int
    accesses: int


def read(cubin: bytes) -> Code:
    """`Code` of the one kernel in `cubin`. Raises `RuntimeError` where a disassembler fails or says nothing."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = _run("cuobjdump", "--dump-resource-usage", str(path))
        sass = _run("nvdisasm", "--print-code", str(path))
    registers = _REGISTERS.search(usage)
    if registers is None:
        raise RuntimeError(f"cuobjdump names no registers: {usage.strip()[:200]!r}")
    return count(sass, int(registers[1]))


def count(sass: str, registers: int) -> Code:
    """`Code` of a disassembly. Raises `RuntimeError` where it holds no instruction: nothing read is not "no spills"."""
    spilled = wide = accesses = 0
    seen = False
    for name, modifiers in _INSTRUCTION.findall(sass):
        seen = True
        if name in _LOCAL:
            spilled += _size(modifiers)
        elif name in _GLOBAL:
            accesses += 1
            wide += _size(modifiers) >= 16
    if not seen:
        raise RuntimeError(f"no instruction in the disassembly: {sass.strip()[:200]!r}")
    return Code(registers, spilled, wide, accesses)


def _size(modifiers: str) -> int:
    return max((_SIZES[word] for word in modifiers.split(".") if word in _SIZES), default=4)


def _run(tool: str, *arguments: str) -> str:
    from triton import knobs

    path = getattr(knobs.nvidia, tool).path
    done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{tool} ended with {done.returncode}: {done.stderr.strip()[:200]}")
    return done.stdout
