"""A kernel with everything fixed that its compiled code depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Variant:
    """What a launch would compile, said ahead of it.

    `fn` is the `@jit` function. `signature` maps every parameter, in order, to Triton's name of its type (`"*fp16"`,
    `"i32"`, `"fp32"`, `"constexpr"`); `constexprs` gives the values of the latter. `wide` asks for global loads or
    stores of 16 bytes in the code. `divisible` names the parameters (addresses, strides) that are multiples of 16,
    which a launch finds out by itself; None stands for every address. `targets` narrows where the variant exists (an
    fp8 type that older cards lack); empty means everywhere.
    """

    name: str
    fn: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    wide: bool = False
    divisible: frozenset[str] | None = None
    targets: tuple[str, ...] = ()

    def aligned(self) -> frozenset[str]:
        """The parameters that are multiples of 16."""
        if self.divisible is not None:
            return self.divisible
        return frozenset(name for name, kind in self.signature.items() if kind.startswith("*"))

    def exists_on(self, target: str) -> bool:
        """Whether `target` (`"sm_90"`) can have it."""
        return not self.targets or target in self.targets
