"""New keys and values find their slots."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernels.kernel_rig import DEVICE, DTYPES, FP8, copies, copy, ints, noise, raw, same_as, torch

from kvstore.errors import BadRequest  # isort: skip
from kvstore.kernels import append as family  # isort: skip
from kvstore.kernels.append import append, append_reference  # isort: skip
from kvstore.kernels.fp8 import FORMATS, encode, encode_reference  # isort: skip
from kvstore.kernels.language import jit, tl  # isort: skip


def scene(
    slots: tuple[int, ...], *, dtype: Any = torch.float32, heads: int = 2, head_dim: int = 32, cache_dtype: Any = None
) -> tuple[Any, ...]:
    """A call over a cache of five blocks of four tokens, which is NaN everywhere."""
    wide = torch.float32 if dtype in FP8 else dtype
    cache = torch.full((5, 2, heads, 4, head_dim), float("nan"), dtype=wide).to(cache_dtype or dtype)
    key, value = (noise(len(slots), heads, head_dim, seed=seed).to(dtype) for seed in (1, 2))
    return key, value, cache, ints(*slots, dtype=torch.int64), None, None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "slots",
    [(), (7,), (0, 1, 2, 3, 4, 5), (19, -1, 8, 3, 13), (-1, -1)],
    ids=["empty", "one token", "in order, last block partial", "scattered, one skipped", "all skipped"],
)
def test_tokens_go_where_the_mapping_says(slots: tuple[int, ...], dtype: Any) -> None:
    same_as(append, append_reference, *scene(slots, dtype=dtype))


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 1), (3, 80), (5, 64), (40, 128)])
def test_shapes_that_are_no_powers_of_two(heads: int, head_dim: int) -> None:
    same_as(append, append_reference, *scene((2, 11), dtype=torch.float16, heads=heads, head_dim=head_dim))


def test_slots_beyond_the_cache_write_nowhere() -> None:
    *_, cache, _, _, _ = same_as(append, append_reference, *scene((20, 2**40, -(2**40))))
    assert cache.isnan().all()


def test_a_cache_without_blocks_keeps_nothing() -> None:
    key, value, cache, *rest = scene((0, 7))
    for dtype in (torch.float32, FP8[0]):
        same_as(append, append_reference, key.to(dtype), value.to(dtype), cache[:0].to(dtype), *rest)


def test_keys_and_values_may_be_parts_of_one_projection() -> None:
    key, value, cache, slots, *rest = scene((6, 1, 12))
    packed = torch.cat([key, value, noise(3, 2, 32)], 1)
    same_as(append, append_reference, packed[:, :2], packed[:, 2:4], cache, slots, *rest)


def test_only_what_is_named_changes() -> None:
    *_, cache, _, _, _ = same_as(append, append_reference, *scene((7,)))
    kept = ~cache.isnan()
    assert kept[1, :, :, 3].all()
    assert int(kept.sum()) == 2 * 2 * 32


@pytest.mark.parametrize("dtype", FP8, ids=str)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16], ids=str)
def test_with_scales_the_cache_holds_eight_bits(dtype: Any, source: Any) -> None:
    key, value, cache, slots, _, _ = scene((3, 9, 0), dtype=source, cache_dtype=dtype)
    scales = torch.tensor([0.013, 1.7]), torch.tensor([0.5, 0.003])
    *_, cache, _, _, _ = same_as(append, append_reference, key, value, cache, slots, *scales)
    seen = cache[0, 0, :, 3].float().cpu() * scales[0][:, None]
    assert torch.allclose(seen, key[0].float(), rtol=0.13, atol=0.013 * 2**-9)


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_encoding_is_that_of_torch_for_every_half(dtype: Any) -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    every = torch.cat([every[~every.isinf()], torch.tensor([1e30, -1e30, 448.0, 464.0, 2**-10, 1.5 * 2**-17])])
    x, out = every.to(DEVICE), torch.zeros(every.shape, dtype=torch.uint8, device=DEVICE)
    mantissa, bias, largest = FORMATS[dtype]
    encode_all[(1,)](x, out, len(x), mantissa, bias, largest, BLOCK=2**17)
    expected = encode_reference(every, dtype)
    assert torch.equal(out.cpu().view(dtype).float().nan_to_num(7e7), expected.float().nan_to_num(7e7))
    assert torch.equal(out.cpu() >> 7, raw(expected) >> 7) or every.isnan().any()


@jit
def encode_all(x, out, n, MANTISSA: tl.constexpr, BIAS: tl.constexpr, LARGEST: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.arange(0, BLOCK)
    tl.store(out + at, encode(tl.load(x + at, mask=at < n), MANTISSA, BIAS, LARGEST), mask=at < n)


def test_a_wrong_slot_is_caught() -> None:
    def shifted(key: Any, value: Any, cache: Any, slots: Any, *scales: Any) -> None:
        append(key, value, cache, slots + 1, *scales)

    with pytest.raises(AssertionError, match="argument 2 differs"):
        same_as(lambda *given: shifted(*given), append_reference, *scene((7,)))


def test_what_cannot_be_is_refused() -> None:
    key, value, cache, slots, *_ = copies(scene((7, 8)))
    scale = torch.ones(2, device=DEVICE)
    small = cache.to(FP8[0])
    for wrong, message in (
        ((key[:1], value, cache, slots, None, None), "key and value must be"),
        ((key, value, cache, slots.int(), None, None), "int64"),
        ((key.half(), value, cache, slots, None, None), "without scales"),
        ((key, value, cache, slots, scale, None), "two scales"),
        ((key, value, cache, slots, scale, scale), "8-bit float"),
        ((key, value, cache[:, :1], slots, None, None), "cache must be"),
        ((key, value, small, slots, scale[:1], scale), "float32"),
        ((key, value.to(FP8[1]), small, slots, scale, scale), "wider keys and values"),
        ((key, value, cache[:, :, :, :0], slots, None, None), "cache must be"),
        ((key, value, cache.transpose(2, 3).contiguous().transpose(2, 3), slots, None, None), "one piece of memory"),
        ((key, value, cache, slots[0], None, None), "slots must be"),
        ((key, value, cache, slots[:, None], None, None), "slots must be"),
        ((*(given.to(torch.complex64) for given in (key, value, cache)), slots, None, None), "complex"),
    ):
        with pytest.raises(BadRequest, match=message):
            append(*wrong)


@pytest.mark.parametrize("place", [0, 1, 3, 4, 5])
def test_tensors_of_several_devices_are_refused(place: int) -> None:
    """By the check itself: torch sends a call with a tensor on "meta" to the fake implementation."""
    key, value, cache, slots, *_ = copies(scene((7, 8)))
    scale = torch.ones(2, device=DEVICE)
    given = [key, value, cache.to(FP8[0]), slots, scale, scale]
    given[place] = given[place].to("meta")
    with pytest.raises(BadRequest, match="lies on meta"):
        family._require(*given)


def test_the_operator_is_what_torch_expects() -> None:
    torch.library.opcheck(append, tuple(copies(scene((7, -1, 2)))))
    key, value, cache, slots, *_ = scene((7,))
    torch.library.opcheck(append, (copy(key), copy(value), copy(cache)[:4], copy(slots), None, None))
