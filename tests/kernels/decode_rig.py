"""What tests of paged decode attention share: calls over a pool that is NaN wherever nobody may look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra cuda)")

from kvstore.kernels.decode import Call, Pages, paged_decode_reference  # noqa: E402
from kvstore.kernels.decode.launch import launch  # noqa: E402

TOLERANCE = {torch.float32: 4e-6, torch.float16: 4e-3, torch.bfloat16: 2.5e-2}
"""Of a mean of standard normal values: some roundings of the weights and one of the output, a wrong token is near 1."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def scene(
    lengths: Sequence[int],
    *,
    dtype: Any = torch.float32,
    kv_dtype: Any = None,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    block_tokens: int = 16,
    q_len: int = 1,
    window: int = 0,
    softcap: float = 0.0,
    scales: Any = None,
    scale: float | None = None,
    seed: int = 0,
) -> Call:
    """Sequences of these lengths in blocks of a pool `[blocks, 2, heads, block_tokens, head_dim]`, in no order.

    Unused blocks and what is behind a sequence's last token are NaN; table entries behind it are no blocks at all.
    """
    random = torch.Generator().manual_seed(seed)
    columns = -(-max(lengths) // block_tokens) + 2
    blocks = len(lengths) * columns + 3
    pool = torch.randn(blocks, 2, kv_heads, block_tokens, head_dim, generator=random)
    tables = torch.randperm(blocks, generator=random)[: len(lengths) * columns].reshape(len(lengths), columns)
    used = torch.zeros(blocks, block_tokens, dtype=torch.bool)
    for row, length in enumerate(lengths):
        for column in range(columns):
            used[tables[row, column], : max(0, length - column * block_tokens)] = True
        tables[row, -(-length // block_tokens) :] = torch.tensor([-1, 1 << 30])[row % 2]
    pool = pool.masked_fill(~used[:, None, None, :, None], float("nan")).to(kv_dtype or dtype).to(DEVICE)
    query = torch.randn(len(lengths), q_len, heads, head_dim, generator=random).to(DEVICE, dtype)
    key_scale, value_scale = (None, None) if scales is None else scales
    return Call(
        query,
        pool[:, 0].transpose(1, 2),
        pool[:, 1].transpose(1, 2),
        Pages(tables.to(DEVICE, torch.int32), torch.tensor(lengths, dtype=torch.int32, device=DEVICE)),
        head_dim**-0.5 if scale is None else scale,
        window,
        softcap,
        key_scale,
        value_scale,
    ).require()


def computed(call: Call, splits: int = 0) -> Any:
    """What the kernels make of it, into memory that held NaN."""
    out = torch.full_like(call.query, float("nan"), memory_format=torch.contiguous_format)
    launch(call, out, splits)
    return out


def require_right(call: Call, out: Any) -> None:
    """Equal to the reference in float64, as near as its dtype allows; NaN nowhere."""
    expected = paged_decode_reference(call)
    worst = float((out.double() - expected).abs().max())
    assert worst <= TOLERANCE[call.query.dtype], f"off by {worst:.3g}"
