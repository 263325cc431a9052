"""Random inputs, fresh in every run, and the memory around them that nobody may touch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
DTYPES = (torch.bfloat16, torch.float16, torch.float32, *FP8)
POISON = 0xA5


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Draw:
    """A stream of random tensors on `device`, from one seed."""

    def __init__(self, seed: int, device: str) -> None:
        self.device = device
        self._host = torch.Generator().manual_seed(seed)
        self._there = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Normal values; drawn in float32, where `dtype` has no generator of its own."""
        wide = dtype if dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64) else torch.float32
        drawn = torch.empty(shape, dtype=wide, device=self.device).normal_(generator=self._there)
        return drawn if wide == dtype else drawn.to(dtype)

    def bytes(self, *shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Every bit random, so that also NaN and subnormals occur; `shape` is in elements of `dtype`."""
        size = (*shape[:-1], shape[-1] * dtype.itemsize)
        drawn = torch.randint(0, 256, size, generator=self._there, dtype=torch.uint8, device=self.device)
        return drawn.view(dtype)

    def flags(self, share: float, *shape: int) -> Tensor:
        """Booleans, that share of them true."""
        return torch.rand(shape, generator=self._there, device=self.device) < share

    def some(self, count: int, of: int) -> Tensor:
        """`count` distinct numbers below `of`, int64, in no order."""
        return torch.randperm(of, generator=self._there, device=self.device)[:count]

    def number(self, low: int, high: int) -> int:
        """low … high, on the host."""
        return int(torch.randint(low, high + 1, (1,), generator=self._host))

    def numbers(self, count: int, low: int, high: int) -> list[int]:
        """`count` of them, on the host."""
        found: list[int] = torch.randint(low, high + 1, (count,), generator=self._host).tolist()
        return found


def raw(tensor: Tensor) -> Tensor:
    """The bytes of a tensor in a row: NaN are equal to themselves, 8-bit floats can be compared."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same(one: Tensor, other: Tensor) -> bool:
    """Bit by bit."""
    return torch.equal(raw(one), raw(other))


@contextmanager
def poisoned() -> Iterator[None]:
    """Meanwhile every tensor that PyTorch makes without filling it is NaN (integers: their largest number): outputs and
    workspaces that an operator makes for itself, too."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
