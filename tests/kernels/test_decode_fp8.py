"""8-bit KV: each byte is the number that it stands for, scales apply to it, and a sequence of it is attended to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra cuda)")
pytest.importorskip("triton", reason="triton is not installed (extra cuda)")

import torch

from tests.kernels.decode_rig import DEVICE, computed, require_right, scene

KINDS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def scales_of(heads: int) -> tuple[Any, Any]:
    """Of keys one a head, of values one for all; not powers of two."""
    return torch.tensor([0.3, 1.7][:heads], device=DEVICE), torch.tensor(0.6, device=DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_sequences(kind: str, dtype: Any) -> None:
    call = scene((0, 1, 37, 130), dtype=dtype, kv_dtype=KINDS[kind], q_len=2, scales=scales_of(2))
    require_right(call, computed(call, splits=2))
    as_bytes = replace(call, keys=call.keys.view(torch.uint8), values=call.values.view(torch.uint8), format=kind)
    assert torch.equal(computed(as_bytes.require(), splits=2), computed(call, splits=2))


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul:RuntimeWarning")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_byte(kind: str, dtype: Any) -> None:
    """Attention over one token is that token's V, so each of the 256 bytes is seen as it is."""
    call = scene((1,), dtype=dtype, kv_dtype=KINDS[kind], head_dim=256, heads=1, kv_heads=1)
    every = torch.arange(256, dtype=torch.uint8, device=DEVICE)
    call.values.view(torch.uint8)[call.pages.tables[0, 0], 0, 0] = every
    expected = every.view(KINDS[kind]).to(dtype)
    # A sum of products meets NaN and infinity times 0 in other columns of none: each column is one number times 1.
    torch.testing.assert_close(computed(call)[0, 0, 0], expected, rtol=0, atol=0, equal_nan=True)
