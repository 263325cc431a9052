"""Launching the kernels: tile sizes for a call, the workspace of its splits, and which path a device takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from kvstore.kernels.decode.attend import attend, combine
from kvstore.kernels.decode.pages import MOST_QUERIES, Call
from kvstore.kernels.decode.splits import choose_splits
from kvstore.kernels.language import interpreted

MOST_ROWS = 64
"""Rows of one program's products, query tokens × heads of a group; more are cut into several programs."""
QUERY_BYTES = {2: 32 << 10, 4: 16 << 10}
"""Of a program's rows, by the bytes of an element: with more, registers spill (measured by `ahead.py`)."""
TILE_BYTES = 16 << 10
"""Of K, and as much of V, in a step of the loop; three stages of both fit into an sm_80's shared memory twice."""
COMBINED = 8
"""Splits of a row that are added up at once."""
LARGEST_WINDOW = 2**31 - 1 - MOST_QUERIES
"""What a window of more tokens is launched as: `-MOST_QUERIES`, the kernel's lowest position, less this is an int32."""
INTERPRETED_PROCESSORS = 2
"""What the interpreter counts as: enough for a small call to be split."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """`rows`, `dims`: a program's query rows and head dimension, each a power of two, at least 16; `tokens` a step of
    its loop."""

    rows: int
    dims: int
    tokens: int
    warps: int
    stages: int


def tiling_of(call: Call) -> Tiling:
    """The query rows that share a KV head, as many tokens as fit into `TILE_BYTES`, and threads for both.

    What is multiplied has the query's type, whatever the pool's, and is what takes registers.
    """
    item_bytes, dims = call.query.element_size(), _power(call.query.shape[3])
    row_bytes = dims * item_bytes
    rows = min(MOST_ROWS, QUERY_BYTES[item_bytes] // row_bytes, _power(call.group * call.query.shape[1]))
    tokens = max(16, min(128, TILE_BYTES // row_bytes))
    warps = 8 if rows == MOST_ROWS or rows * row_bytes >= 16 << 10 else 4
    return Tiling(rows, dims, tokens, warps, stages=3)


def launch(call: Call, out: torch.Tensor, splits: int = 0, tiling: Tiling | None = None) -> int:
    """Run the kernels on a checked call into `out`, contiguous and of its query's shape; the splits taken (0: choose).

    Nothing is read back. Every element of `out` is written, whatever was in it.
    """
    batch, q_len, heads, head_dim = call.query.shape
    if not call.query.numel():
        return 0
    tiling = tiling or tiling_of(call)
    parts = call.keys.shape[2] * -(-call.group * q_len // tiling.rows)
    if not splits:
        tiles = -(-call.pages.most_blocks * call.keys.shape[1] // tiling.tokens)
        splits = choose_splits(batch * parts, tiles, _processors(call.query.device))
    into, sums = out, out
    if splits > 1:
        into = torch.empty((batch, q_len, heads, splits, head_dim), dtype=torch.float32, device=out.device)
        sums = torch.empty((batch, q_len, heads, splits), dtype=torch.float32, device=out.device)
    options = {"num_warps": tiling.warps, "num_stages": tiling.stages}
    fixed = constants(call, tiling, splits > 1, kernel_format(call))
    with torch.cuda.device_of(call.query):
        attend[(batch, parts, splits)](**arguments(call, into, sums, splits), **fixed, **options)
        if splits > 1:
            combine[(batch * q_len * heads,)](
                into, sums, out, splits, HEAD_DIM=head_dim, D=tiling.dims, SPLITS=_power(splits), SOME=COMBINED,
                num_warps=2,
            )  # fmt: skip
    return splits


def arguments(call: Call, out: torch.Tensor, sums: torch.Tensor, splits: int) -> dict[str, Any]:
    """What `attend` takes at run time."""
    query, keys, values, pages = call.query, _raw(call.keys), _raw(call.values), call.pages
    key_scale = sums if call.key_scale is None else call.key_scale
    value_scale = sums if call.value_scale is None else call.value_scale
    return {
        "query": query, "keys": keys, "values": values, "tables": pages.tables, "lengths": pages.lengths,
        "indptr": pages.lengths if pages.indptr is None else pages.indptr,
        "key_scales": key_scale, "value_scales": value_scale, "out": out, "sums": sums,
        "scale": call.scale, "softcap": call.softcap, "window": min(call.window, LARGEST_WINDOW), "splits": splits,
        "query_row": query.stride(0), "query_token": query.stride(1), "query_head": query.stride(2),
        "key_block": keys.stride(0), "key_token": keys.stride(1), "key_head": keys.stride(2),
        "value_block": values.stride(0), "value_token": values.stride(1), "value_head": values.stride(2),
        "table_row": pages.tables.stride(0) if pages.indptr is None else 0,
        "key_scale_head": _step(call.key_scale), "value_scale_head": _step(call.value_scale),
        "heads": query.shape[2],
    }  # fmt: skip


def _step(scale: torch.Tensor | None) -> int:
    """Elements from one KV head's scale to the next; 0 where one is everybody's."""
    return int(scale.stride(0)) if scale is not None and scale.numel() > 1 else 0


def constants(call: Call, tiling: Tiling, split: bool, format: str) -> dict[str, Any]:
    """What `attend` is compiled for. Float32 products are three TF32 ones: as exact, and they fit into registers."""
    return {
        "Q_LEN": call.query.shape[1], "GROUP": call.group, "HEAD_DIM": call.query.shape[3],
        "BLOCK_TOKENS": call.keys.shape[1], "M": tiling.rows, "D": tiling.dims, "TILE": tiling.tokens,
        "CSR": call.pages.indptr is not None, "SPLIT": split, "WINDOW": call.window > 0, "SOFTCAP": call.softcap > 0,
        "KEY_SCALED": call.key_scale is not None, "VALUE_SCALED": call.value_scale is not None,
        "FORMAT": format, "PRECISION": "tf32x3" if call.query.dtype == torch.float32 else "tf32",
        "WIDEN": call.query.dtype == torch.bfloat16 and interpreted(),
    }  # fmt: skip


def kernel_format(call: Call, capability: tuple[int, int] | None = None) -> str:
    """How the kernel reads KV: as it is, by a conversion of the GPU's own (`…-native`), or from its bits.

    From e5m2 all our targets convert by themselves, from e4m3 those since 8.9 (PTX ISA, `cvt.rn.f16x2.e4m3x2`).
    `capability` of the GPU; None: of the one that the query is on.
    """
    if not call.kv_format:
        return "native"
    capability = capability or _capability(call.query.device)
    least = (8, 0) if call.kv_format == "e5m2" else (8, 9)
    return call.kv_format + ("-native" if capability >= least else "")


def _raw(states: torch.Tensor) -> torch.Tensor:
    """8-bit floats as bytes: what they are is in the kernel's FORMAT."""
    return states.view(torch.uint8) if states.element_size() == 1 else states


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


@cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _power(number: int) -> int:
    """The next power of two, at least 16."""
    return max(16, 1 << (number - 1).bit_length())
