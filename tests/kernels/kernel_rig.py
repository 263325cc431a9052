"""What the tests of the kernels share: where they run, and a call that is compared with what it means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra cuda)")
pytest.importorskip("triton", reason="triton is not installed (extra cuda)")

from kvstore.kernels.language import launches  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, *FP8)


def same_as(kernel: Callable[..., Any], reference: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call both on copies of `arguments`; every tensor must end up the same, bit by bit. The kernel's copies."""
    assert launches(torch.empty(0, device=DEVICE)), "only the reference would run"
    ours, theirs = copies(arguments), copies(arguments)
    kernel(*ours)
    reference(*theirs)
    for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if isinstance(one, torch.Tensor):
            assert torch.equal(raw(one), raw(other)), f"argument {place} differs"
    return ours


def copies(arguments: tuple[Any, ...]) -> list[Any]:
    """The arguments, tensors copied with their strides, on the device under test."""
    return [copy(x) if isinstance(x, torch.Tensor) else x for x in arguments]


def copy(tensor: Any) -> Any:
    """A tensor of its own with the same shape, strides and bytes."""
    if tensor.is_contiguous():
        return tensor.to(DEVICE, copy=True)
    base = torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    return torch.as_strided(base.to(DEVICE, copy=True), tensor.shape, tensor.stride(), tensor.storage_offset())


def raw(tensor: Any) -> Any:
    """The bytes of a tensor: NaN are equal to themselves, and 8-bit floats can be compared."""
    return tensor.contiguous().view(torch.uint8)


def noise(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
    """Normal values, which no rounding in `dtype` makes alike."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ints(*values: int, dtype: Any = torch.int32) -> Any:
    return torch.tensor(values, dtype=dtype)
