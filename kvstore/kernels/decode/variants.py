"""What paged decode attention compiles to: the variants that are compiled ahead of time for each target."""

from __future__ import annotations

import torch

from kvstore.kernels.decode.attend import attend, combine
from kvstore.kernels.decode.launch import COMBINED, arguments, constants, kernel_format, tiling_of
from kvstore.kernels.decode.pages import Call, Pages
from kvstore.kernels.decode.splits import MOST_SPLITS
from kvstore.kernels.variant import Variant

_TYPES = {
    torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.uint8: "*u8",
}  # fmt: skip
_SINCE_89 = ("sm_90", "sm_100")
F16, BF16, F32, E4M3, E5M2 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2


def variants() -> list[Variant]:
    """One of each kind: dtypes, head dimensions with and without padding, small and large blocks, few and many rows."""
    return [
        _variant("fp16-d128-b16", _call(F16)),
        _variant("bf16-d128-b64-q8-g8", _call(BF16, block_tokens=64, q_len=8, group=8)),
        _variant("bf16-d80-b8-csr", _call(BF16, head_dim=80, block_tokens=8, csr=True)),
        _variant("bf16-d256-b16-window-softcap", _call(BF16, head_dim=256, window=4096, softcap=50.0), splits=1),
        _variant("fp32-d64-b16", _call(F32, head_dim=64)),
        _variant("bf16-d64-b16-q8-g8", _call(BF16, head_dim=64, q_len=8, group=8)),
        _variant("fp32-d256-b16-q8-g8", _call(F32, head_dim=256, q_len=8, group=8)),
        _variant("bf16-e4m3-d128-b16", _call(BF16, E4M3), capability=(9, 0), targets=_SINCE_89),
        _variant("bf16-e4m3-bits-d128-b16", _call(BF16, E4M3), capability=(8, 0), targets=("sm_80",)),
        _variant("fp16-e5m2-d128-b128", _call(F16, E5M2, block_tokens=128), capability=(8, 0)),
        _combine("combine-bf16-d128", head_dim=128, splits=16),
        _combine("combine-bf16-d256-most", head_dim=256, splits=MOST_SPLITS),
    ]


def _call(
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None = None,
    *,
    head_dim: int = 128,
    block_tokens: int = 16,
    q_len: int = 1,
    group: int = 4,
    window: int = 0,
    softcap: float = 0.0,
    csr: bool = False,
) -> Call:
    """A call of 64 sequences over a pool `[blocks, 2, heads, block_tokens, head_dim]` of 8 KV heads, without memory."""
    kv_dtype = kv_dtype or dtype

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    pool = empty(4096, 2, 8, block_tokens, head_dim, dtype=kv_dtype)
    scale = empty(8, dtype=F32) if kv_dtype.itemsize == 1 else None
    pages = Pages(empty(4096), empty(64), empty(65)) if csr else Pages(empty(64, 512), empty(64))
    query = empty(64, q_len, 8 * group, head_dim, dtype=dtype)
    keys, values = pool[:, 0].transpose(1, 2), pool[:, 1].transpose(1, 2)
    return Call(query, keys, values, pages, head_dim**-0.5, window, softcap, scale, scale).require()


def _variant(
    name: str, call: Call, *, splits: int = 8, capability: tuple[int, int] = (8, 0), targets: tuple[str, ...] = ()
) -> Variant:
    tiling = tiling_of(call)
    into = call.query if splits == 1 else call.query.float()
    given = arguments(call, into, into, splits)
    fixed = {**constants(call, tiling, splits > 1, kernel_format(call, capability)), "WIDEN": False}
    signature, divisible = {}, set()
    for parameter in attend.arg_names:
        value = given.get(parameter)
        if parameter in fixed:
            signature[parameter] = "constexpr"
        elif isinstance(value, torch.Tensor):
            signature[parameter] = _TYPES[value.dtype]
            divisible.add(parameter)
        else:
            signature[parameter] = "fp32" if isinstance(value, float) else "i32"
            if isinstance(value, int) and value % 16 == 0 and parameter not in ("window", "splits"):
                divisible.add(parameter)
    return Variant(
        f"paged_decode-{name}", attend, signature, fixed, tiling.warps, tiling.stages, True,
        frozenset(divisible), targets,
    )  # fmt: skip


def _combine(name: str, *, head_dim: int, splits: int) -> Variant:
    fixed = {"HEAD_DIM": head_dim, "D": head_dim, "SPLITS": splits, "SOME": COMBINED}
    kinds = {"partial": "*fp32", "sums": "*fp32", "out": "*bf16", "splits": "i32"}
    signature = {parameter: kinds.get(parameter, "constexpr") for parameter in combine.arg_names}
    return Variant(f"paged_decode-{name}", combine, signature, fixed, num_warps=2, wide=True)
