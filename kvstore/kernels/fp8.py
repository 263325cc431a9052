"""Eight-bit floats by integer arithmetic: the same bits on every card, also on those without such a type.

e4m3: 4 bits of exponent (bias 7), 3 of mantissa, no infinity, at most 448; e5m2: 5 (bias 15), 2, at most 57344 here.
Rounding is to the nearest, ties to even; what is beyond the largest value becomes it. Source: Micikevicius et al.,
"FP8 formats for deep learning" (2022), the layouts that PyTorch calls float8_e4m3fn and float8_e5m2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvstore.kernels.language import jit, tl

FORMATS = {torch.float8_e4m3fn: (3, 7, 448.0), torch.float8_e5m2: (2, 15, 57344.0)}
"""Bits of mantissa, bias, largest value."""


@jit
def encode(x, MANTISSA: tl.constexpr, BIAS: tl.constexpr, LARGEST: tl.constexpr):
    """float32 → the bits of an 8-bit float, uint8."""
    shift: tl.constexpr = 23 - MANTISSA
    smallest: tl.constexpr = 2.0 ** (1 - BIAS)
    # Added to a number below the smallest normal one, this puts the last bit of the format at bit 0 and rounds.
    magic: tl.constexpr = 2.0 ** (24 - BIAS - MANTISSA)
    magic_bits: tl.constexpr = (127 + 24 - BIAS - MANTISSA) << 23
    size = tl.minimum(tl.abs(x), LARGEST)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + ((1 << (shift - 1)) - 1) + ((bits >> shift) & 1)) >> shift) - ((127 - BIAS) << MANTISSA)
    tiny = (size + magic).to(tl.int32, bitcast=True) - magic_bits
    code = tl.where(size < smallest, tiny, normal)
    code = tl.where(x != x, 0x7F, code)
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (code | sign).to(tl.uint8)


def encode_reference(x: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 → `dtype`, as `encode`."""
    largest = FORMATS[dtype][2]
    return x.clamp(-largest, largest).to(dtype)
