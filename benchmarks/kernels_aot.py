"""What the kernels take on GPUs that are not there: registers, shared memory, spills, 16-byte accesses.

    python benchmarks/kernels_aot.py [--targets sm_80,sm_90,sm_100] [--workers 2] [--no-write]

Compiles every variant ahead of time with triton's own assembler and reads the machine code. Prints the table and writes
benchmarks/results/kernels-aot-DATE.md. Ends with 1 if a kernel spills, does not compile, or has no access of 16 bytes
where it should; with 2 where nothing can be compiled, or what is asked for cannot be.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
import sys
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from kvstore.errors import BadRequest
from kvstore.kernels.ahead import KNOWN, TARGETS, Compiled, compile_apart

RESULTS = Path(__file__).resolve().parent / "results"


def row(kernels: Sequence[Compiled]) -> str:
    """One line of the table: a kernel on all targets."""
    first = kernels[0]
    cells = [
        " / ".join(str(getattr(kernel, name)) if not kernel.error else "–" for kernel in kernels)
        for name in ("registers", "shared", "spills")
    ]
    wide = " / ".join(f"{kernel.wide} of {kernel.accesses}" if not kernel.error else "–" for kernel in kernels)
    targets = ", ".join(kernel.target for kernel in kernels)
    return f"| {first.family} | {first.name} | {targets} | {first.warps} | {' | '.join(cells)} | {wide} |"


def table(found: Sequence[Compiled]) -> list[str]:
    """The Markdown table, a kernel a line."""
    lines = [
        "| family | kernel | targets | warps | registers a thread | shared bytes | spill bytes | 16-byte accesses |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return lines + [row(list(same)) for _, same in groupby(found, key=lambda kernel: (kernel.family, kernel.name))]


def report(found: Sequence[Compiled], seconds: float) -> str:
    """The page under benchmarks/results."""
    triton, torch = (importlib.metadata.version(name) for name in ("triton", "torch"))
    faults = [f"- {kernel.family} {kernel.name} on {kernel.target}: {kernel.fault}" for kernel in found if kernel.fault]
    return "\n".join(
        [
            f"# Kernels, compiled ahead of time, {datetime.date.today()}",
            "",
            f"Triton {triton}, torch {torch}, Python {platform.python_version()}; {len(found)} compilations in "
            f"{seconds:.0f} s (those that triton had kept cost nothing). No GPU: what follows is read from the machine "
            "code, nothing of it is a time.",
            "",
            "Values are in the order of the targets. Spills: bytes that a thread moves to and from local memory. "
            "16-byte accesses: those of 16 bytes or more, of all loads from and stores to global memory.",
            "",
            *table(found),
            "",
            *(faults or ["No spills; 16-byte accesses wherever they are asked for."]),
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--targets", default=",".join(TARGETS), help=f"of {', '.join(KNOWN)}")
    parser.add_argument("--workers", type=int, default=2, help="processes that compile, 1 or more")
    parser.add_argument("--no-write", action="store_true")
    given = parser.parse_args(arguments)
    begun = time.monotonic()
    try:
        found = compile_apart(list(dict.fromkeys(given.targets.split(","))), given.workers)
    except (BadRequest, RuntimeError) as error:
        print(f"kernels_aot: {error}", file=sys.stderr)
        return 2
    page = report(found, time.monotonic() - begun)
    print(page)
    if not given.no_write:
        (RESULTS / f"kernels-aot-{datetime.date.today()}.md").write_text(page, encoding="utf-8")
    return 1 if any(kernel.fault for kernel in found) else 0


if __name__ == "__main__":
    sys.exit(main())
