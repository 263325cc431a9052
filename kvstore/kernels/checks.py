"""What the launchers ask of their tensors, in one place, so that every refusal is worded alike."""

from __future__ import annotations

import torch
from torch import Tensor

from kvstore.errors import BadRequest


def require_int32(**tensors: Tensor) -> None:
    """Raise `BadRequest` for the first of `tensors` that is no contiguous int32, or not on the first one's device."""
    for name, tensor in tensors.items():
        if tensor.dtype != torch.int32 or not tensor.is_contiguous():
            raise BadRequest(f"{name} must be a contiguous int32 tensor, not {tensor.dtype} {tuple(tensor.stride())}")
    require_one_device(**tensors)


def shapes(**tensors: Tensor) -> str:
    """The shape of each, in words: for a refusal."""
    return ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())


def require_one_device(**tensors: Tensor) -> None:
    """Raise `BadRequest` where `tensors` lie on several devices."""
    (first, where), *others = ((name, tensor.device) for name, tensor in tensors.items())
    for name, device in others:
        if device != where:
            raise BadRequest(f"{name} lies on {device}, {first} on {where}")
