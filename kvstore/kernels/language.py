"""Triton as the kernels see it: `jit`, `tl`, and where a launch is possible.

What differs between a machine with triton, with its interpreter (`TRITON_INTERPRET=1` before this module is imported),
and with neither stands here, so that a family's reference can be used, and read, without triton.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

__all__ = ["Absent", "interpreted", "jit", "launches", "on", "power_of_two", "tl", "triton"]


class Absent:
    """A kernel where triton is not installed: it can be named, but neither launched nor compiled."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__name__ = function.__name__

    def __getitem__(self, grid: Any) -> Any:
        raise ModuleNotFoundError(
            f"kernel {self.__name__} needs triton: pip install '.[cuda]' in kvscope's checkout", name="triton"
        )


def jit(function: Callable[..., Any] | None = None, *, unspecialised: Sequence[str] = ()) -> Any:
    """`triton.jit`, or a stand-in that says what is missing when it is launched.

    `unspecialised` names the integers that differ from step to step: a launch must not compile the kernel again
    because one of them has become 1 or a multiple of 16.
    """
    if function is None:
        return partial(jit, unspecialised=unspecialised)
    return Absent(function) if triton is None else triton.jit(function, do_not_specialize=list(unspecialised))


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels of this process: on NumPy, one program after another."""
    return triton is not None and type(_probe).__name__ == "InterpretedFunction"


def launches(tensor: torch.Tensor) -> bool:
    """Whether a kernel can be launched on `tensor`: else its reference is run."""
    return triton is not None and (tensor.is_cuda or interpreted())


def on(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Launches within go to the card on which `tensor` lies, whatever the current one is."""
    if not tensor.is_cuda:
        return nullcontext()
    import torch

    card: AbstractContextManager[object] = torch.cuda.device(tensor.device)
    return card


def power_of_two(n: int) -> int:
    """The lowest power of two that is at least `n`, for n >= 1."""
    return 1 << (n - 1).bit_length()


@jit
def _probe(x: Any) -> None:
    pass
