"""New keys and values into the pool, token by token, where the slot mapping says."""

from __future__ import annotations

import torch
from torch import Tensor

from kvstore.errors import BadRequest
from kvstore.kernels.checks import require_one_device
from kvstore.kernels.fp8 import FORMATS, encode, encode_reference
from kvstore.kernels.language import jit, launches, on, power_of_two, tl
from kvstore.kernels.variant import Variant

_TILE = 2048
"""Elements of K, and as many of V, that a program moves: 4 KiB of fp16, eight loads of 16 bytes a thread for both."""
_WARPS = 2


@jit
def append_tokens(
    key, value, cache, slots, key_scale, value_scale, heads, blocks,
    key_token, key_head, value_token, value_head, cache_block, cache_kind,
    BLOCK_TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr,
    MANTISSA: tl.constexpr, BIAS: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """A token and `HEADS` heads a program. Strides are in elements; `DIM` is `HEAD_DIM` rounded up to a power of two.

    `MANTISSA` 0: the elements are copied as they are; else they are divided by their head's scale and encoded.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    dim = tl.arange(0, DIM)[None, :]
    slot = tl.load(slots + token)
    block = slot // BLOCK_TOKENS
    if (slot >= 0) & (block < blocks):
        inside = (head < heads) & (dim < HEAD_DIM)
        k = tl.load(key + token * key_token + head * key_head + dim, mask=inside)
        v = tl.load(value + token * value_token + head * value_head + dim, mask=inside)
        if MANTISSA:
            k_scale = tl.load(key_scale + head, mask=head < heads, other=1.0)
            v_scale = tl.load(value_scale + head, mask=head < heads, other=1.0)
            k = tl.div_rn(k.to(tl.float32), tl.broadcast_to(k_scale, [HEADS, DIM]))
            v = tl.div_rn(v.to(tl.float32), tl.broadcast_to(v_scale, [HEADS, DIM]))
            k = encode(k, MANTISSA, BIAS, LARGEST)
            v = encode(v, MANTISSA, BIAS, LARGEST)
        there = block * cache_block + (head * BLOCK_TOKENS + slot % BLOCK_TOKENS) * HEAD_DIM + dim
        tl.store(cache + there, k, mask=inside)
        tl.store(cache + there + cache_kind, v, mask=inside)


def append_reference(
    key: Tensor, value: Tensor, cache: Tensor, slots: Tensor, key_scale: Tensor | None, value_scale: Tensor | None
) -> None:
    """As `append`."""
    blocks, _, _, block_tokens, _ = cache.shape
    kept = (slots >= 0) & (slots < blocks * block_tokens)
    block, offset = slots[kept] // block_tokens, slots[kept] % block_tokens
    for kind, (new, scale) in enumerate(((key, key_scale), (value, value_scale))):
        rows = new[kept]
        if scale is not None:
            rows = encode_reference(rows.float() / scale[:, None], cache.dtype)
        # Indexing knows no 8-bit floats everywhere: their bytes do as well.
        raw = cache.view(torch.uint8) if cache.element_size() == 1 else cache
        raw[block, kind, :, offset] = rows.view(torch.uint8) if cache.element_size() == 1 else rows


@torch.library.custom_op("kvscope::append", mutates_args={"cache"})
def append(
    key: Tensor, value: Tensor, cache: Tensor, slots: Tensor, key_scale: Tensor | None, value_scale: Tensor | None
) -> None:
    """`key`, `value` `[tokens, heads, head_dim]` into `cache` `[blocks, 2, heads, block_tokens, head_dim]`.

    `slots` `[tokens]` int64, distinct: a token's slot; below 0, or beyond the cache: the token is skipped. With scales
    (float32 `[heads]`, both or none) the cache is an 8-bit float and holds `x / scale`; else it has the type of `key`.
    """
    _require(key, value, cache, slots, key_scale, value_scale)
    if not launches(cache):
        append_reference(key, value, cache, slots, key_scale, value_scale)
    elif len(key):
        _launch(key, value, cache, slots, key_scale, value_scale)


@append.register_fake
def _(
    key: Tensor, value: Tensor, cache: Tensor, slots: Tensor, key_scale: Tensor | None, value_scale: Tensor | None
) -> None:
    return None


def _launch(
    key: Tensor, value: Tensor, cache: Tensor, slots: Tensor, key_scale: Tensor | None, value_scale: Tensor | None
) -> None:
    mantissa, bias, largest = FORMATS[cache.dtype] if key_scale is not None else (0, 0, 0.0)
    if cache.element_size() == 1:
        cache = cache.view(torch.uint8)
        key, value = (key, value) if mantissa else (key.view(torch.uint8), value.view(torch.uint8))
    tokens, heads, head_dim = key.shape
    dim = power_of_two(head_dim)
    some = min(power_of_two(heads), max(1, _TILE // dim))
    with on(cache):
        append_tokens[(tokens, -(-heads // some))](
            key, value, cache, slots, key_scale, value_scale, heads, len(cache),
            key.stride(0), key.stride(1), value.stride(0), value.stride(1), cache.stride(0), cache.stride(1),
            BLOCK_TOKENS=cache.shape[3], HEAD_DIM=head_dim, HEADS=some, DIM=dim,
            MANTISSA=mantissa, BIAS=bias, LARGEST=largest, num_warps=_WARPS,
        )  # fmt: skip


def _require(
    key: Tensor, value: Tensor, cache: Tensor, slots: Tensor, key_scale: Tensor | None, value_scale: Tensor | None
) -> None:
    if cache.dim() != 5 or cache.shape[1] != 2 or 0 in cache.shape[1:]:
        raise BadRequest(f"cache must be [blocks, 2, heads, block_tokens, head_dim], not {tuple(cache.shape)}")
    if len(cache) and not cache[0].is_contiguous():
        raise BadRequest(f"a block of cache must be one piece of memory, not of strides {tuple(cache.stride())}")
    if slots.dim() != 1:
        raise BadRequest(f"slots must be [tokens], not {tuple(slots.shape)}")
    shape = (len(slots), cache.shape[2], cache.shape[4])
    if key.shape != shape or value.shape != shape or key.stride(2) != 1 or value.stride(2) != 1:
        raise BadRequest(f"key and value must be {shape}, not {tuple(key.shape)} and {tuple(value.shape)}")
    if slots.dtype != torch.int64 or not slots.is_contiguous():
        raise BadRequest(f"slots must be a contiguous int64 tensor, not {slots.dtype}")
    if cache.is_complex() or key.is_complex() or value.is_complex():
        raise BadRequest(f"complex numbers cannot be kept: a cache of {cache.dtype}, keys of {key.dtype}")
    if key_scale is None and value_scale is None:
        if key.dtype != cache.dtype or value.dtype != cache.dtype:
            raise BadRequest(f"a cache of {cache.dtype} takes no {key.dtype} without scales")
        return require_one_device(cache=cache, key=key, value=value, slots=slots)
    narrow = 1 in (key.element_size(), value.element_size())
    if key_scale is None or value_scale is None or cache.dtype not in FORMATS or narrow:
        raise BadRequest(
            "two scales go with an 8-bit float cache and wider keys and values, "
            f"not {cache.dtype}, {key.dtype} and {value.dtype}"
        )
    for scale in (key_scale, value_scale):
        if scale.shape != cache.shape[2:3] or scale.dtype != torch.float32 or not scale.is_contiguous():
            raise BadRequest(f"a scale must be float32 [{cache.shape[2]}], not {scale.dtype} {tuple(scale.shape)}")
    scales = {"key_scale": key_scale, "value_scale": value_scale}
    return require_one_device(cache=cache, key=key, value=value, slots=slots, **scales)


def variants() -> list[Variant]:
    """Copies of 2-byte and 1-byte elements, a head dimension that is no power of two, and both encodings."""
    return [
        _variant("append-bf16-d128", "bf16", "bf16"),
        _variant("append-fp16-d80", "fp16", "fp16", head_dim=80),
        _variant("append-bytes-d128", "u8", "u8"),
        _variant("append-bf16-e4m3-d128", "bf16", "u8", FORMATS[torch.float8_e4m3fn]),
        _variant("append-bf16-e5m2-d128", "bf16", "u8", FORMATS[torch.float8_e5m2]),
    ]


def _variant(
    name: str, source: str, kept: str, encoding: tuple[int, int, float] = (0, 0, 0.0), *, head_dim: int = 128
) -> Variant:
    scale = "*fp32" if encoding[0] else "constexpr"
    strides = ("key_token", "key_head", "value_token", "value_head", "cache_block", "cache_kind")
    fixed: dict[str, int | float] = {
        "BLOCK_TOKENS": 16,
        "HEAD_DIM": head_dim,
        "HEADS": 8,
        "DIM": power_of_two(head_dim),
    }
    fixed |= {"MANTISSA": encoding[0], "BIAS": encoding[1], "LARGEST": encoding[2]}
    signature = {"key": f"*{source}", "value": f"*{source}", "cache": f"*{kept}", "slots": "*i64"}
    signature |= {"key_scale": scale, "value_scale": scale, "heads": "i32", "blocks": "i32"}
    signature |= dict.fromkeys(strides, "i32") | dict.fromkeys(fixed, "constexpr")
    absent = {} if encoding[0] else {"key_scale": None, "value_scale": None}
    addresses = {name for name, kind in signature.items() if kind.startswith("*")}
    return Variant(
        name, append_tokens, signature, fixed | absent, _WARPS, wide=True, divisible=frozenset(addresses | set(strides))
    )
