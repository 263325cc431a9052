"""Compiles every kernel of this package for a GPU that need not be there, with the assembler that triton brings.

    python -m kvstore.kernels.ahead sm_80 sm_90 sm_100 [--part 0/2]

prints one JSON object a kernel and target. In a process under Triton's interpreter there is nothing to compile: use
`compile_apart`, which starts processes of its own.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

import kvstore.kernels
from kvstore.errors import BadRequest
from kvstore.kernels.variant import Variant

TARGETS = ("sm_80", "sm_90", "sm_100")
"""A100; H100 and H200; B200."""
KNOWN = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121")
"""What can be asked for: of the architectures that triton's assembler lists, those since 8.0, triton's oldest. For
others the compiler has no clear word: LLVM ends the process where it cannot select an instruction."""


@dataclass(frozen=True)
class Compiled:
    """One kernel on one target. `shared`: bytes a program; `spills`, `wide`, `accesses`: see `cubin.Code`;
    `wants_wide`: its `Variant.wide`. With an `error` all numbers are 0 and mean nothing."""

    family: str
    name: str
    target: str
    warps: int
    registers: int = 0
    shared: int = 0
    spills: int = 0
    wide: int = 0
    accesses: int = 0
    wants_wide: bool = False
    error: str = ""

    @property
    def fault(self) -> str:
        """What is wrong with it; nothing if all is well."""
        if self.error:
            return self.error
        if self.spills:
            return f"spills {self.spills} bytes a thread"
        return "no access of 16 bytes" if self.wants_wide and not self.wide else ""


def families() -> Iterator[ModuleType]:
    """The modules of this package that have `variants`, by name."""
    for found in pkgutil.iter_modules(kvstore.kernels.__path__):
        module = importlib.import_module(f"kvstore.kernels.{found.name}")
        if hasattr(module, "variants"):
            yield module


def all_variants() -> list[tuple[str, Variant]]:
    """Family and variant, of all."""
    return [(module.__name__.rpartition(".")[2], variant) for module in families() for variant in module.variants()]


def compile_all(target: str, part: int = 0, parts: int = 1) -> list[Compiled]:
    """Every variant that `target` (`"sm_90"`) can have, or every `parts`-th of them, from `part` on."""
    _require_compiler()
    _capability(target)
    there = [(family, variant) for family, variant in all_variants() if variant.exists_on(target)]
    return [compile_one(family, variant, target) for family, variant in there[part::parts]]


def compile_one(family: str, variant: Variant, target: str) -> Compiled:
    """`variant` compiled and read. What the compiler refuses is told in the result's `error`."""
    from kvstore.kernels import cubin

    compiled = Compiled(family, variant.name, target, variant.num_warps, wants_wide=variant.wide)
    try:
        kernel = _compile(variant, target)
        code = cubin.read(kernel.asm["cubin"])
    except Exception as error:
        return Compiled(**asdict(compiled) | {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]})
    numbers = {
        "registers": code.registers,
        "shared": int(kernel.metadata.shared),
        "spills": code.spill_bytes,
        "wide": code.wide,
        "accesses": code.accesses,
    }
    return Compiled(**asdict(compiled) | numbers)


def compile_apart(targets: Sequence[str] = TARGETS, workers: int = 2) -> list[Compiled]:
    """`compile_all` for each of `targets` in `workers` processes without the interpreter, sorted by name and target.

    Raises `BadRequest` where torch or triton is missing, for a target that is not `KNOWN` and without a worker;
    `RuntimeError` with what a process said last when it fails.
    """
    for target in targets:
        _capability(target)
    if workers < 1:
        raise BadRequest(f"{workers} workers compile nothing: 1 or more, please")
    for needed in ("torch", "triton"):
        if importlib.util.find_spec(needed) is None:
            raise BadRequest(
                f"nothing to compile with: {needed} is not installed (pip install '.[cuda]' in kvscope's checkout)"
            )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}

    def work(part: int) -> list[Compiled]:
        command = [sys.executable, "-m", __name__, *targets, "--part", f"{part}/{workers}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the compiler's process ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        return [Compiled(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]

    with ThreadPoolExecutor(workers) as pool:
        found = [compiled for part in pool.map(work, range(workers)) for compiled in part]
    return sorted(found, key=lambda compiled: (compiled.family, compiled.name, targets.index(compiled.target)))


def _compile(variant: Variant, target: str) -> Any:
    """The only place that knows how a Triton release is asked: 3.6 to 3.9 agree on this."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = list(variant.signature)
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in variant.aligned()}
    source = ASTSource(
        fn=variant.fn, signature=dict(variant.signature), constexprs=dict(variant.constexprs), attrs=attributes
    )
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    return triton.compile(source, target=GPUTarget("cuda", _capability(target), 32), options=options)


def _capability(target: str) -> int:
    if target not in KNOWN:
        raise BadRequest(f"target {target!r} is none that kernels are compiled for: {', '.join(KNOWN)}")
    return int(target.removeprefix("sm_"))


def _share(text: str) -> tuple[int, int]:
    """`0/2` → (0, 2)."""
    part, slash, parts = text.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal() and int(part) < int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is no share: 0/2 and 1/2 are the two of two")
    return int(part), int(parts)


def _require_compiler() -> None:
    from kvstore.kernels.language import interpreted, triton

    if triton is None:
        raise BadRequest(
            "nothing to compile with: triton is not installed (pip install '.[cuda]' in kvscope's checkout)"
        )
    if interpreted():
        raise BadRequest("nothing can be compiled under Triton's interpreter: unset TRITON_INTERPRET")


def main(arguments: Sequence[str] | None = None) -> int:
    """JSON lines on stdout; 2 for what cannot be asked."""
    parser = argparse.ArgumentParser(prog="python -m kvstore.kernels.ahead", description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", default=list(TARGETS))
    parser.add_argument(
        "--part", default=(0, 1), type=_share, metavar="PART/PARTS", help="which share of the kernels, as 0/2"
    )
    given = parser.parse_args(arguments)
    try:
        for target in given.targets:
            for compiled in compile_all(target, *given.part):
                print(json.dumps(asdict(compiled)), flush=True)
    except BadRequest as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
