"""Paged decode attention as an operator: registration, refusals, splits, and who computed it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra cuda)")

import torch

from kvstore.errors import BadRequest
from kvstore.kernels import decode
from kvstore.kernels.decode import Pages, op, paged_decode, paged_decode_csr, paged_decode_reference
from kvstore.kernels.decode.splits import MOST_SPLITS, choose_splits
from tests.kernels.decode_rig import DEVICE, require_right, scene


def given(**changes: Any) -> tuple[Any, ...]:
    call = scene((3, 0, 20), q_len=2, **changes)
    return call.query, call.keys, call.values, call.pages.tables, call.pages.lengths, call.scale


def csr_given() -> tuple[Any, ...]:
    query, keys, values, tables, _, scale = given()
    indptr, last = torch.tensor([0, 1, 1, 3]), torch.tensor([3, 0, 4])
    indices = torch.cat([tables[0, :1], tables[2, :2]])
    return query, keys, values, *(t.to(DEVICE, torch.int32) for t in (indptr, indices, last)), scale


def test_the_operators_are_what_torch_expects() -> None:
    torch.library.opcheck(paged_decode, given())
    torch.library.opcheck(paged_decode_csr, csr_given())
    # As bytes: the check compares its tensors before and after, which torch cannot do with 8-bit floats.
    query, keys, values, *rest = given(kv_dtype=torch.float8_e5m2)
    scales = {"key_scale": torch.ones(2, device=DEVICE), "value_scale": torch.ones(1, device=DEVICE)}
    as_bytes = (query, keys.view(torch.uint8), values.view(torch.uint8), *rest)
    torch.library.opcheck(paged_decode, as_bytes, {"window": 5, "format": "e5m2", **scales})


def test_both_page_tables_and_a_compiled_graph_agree() -> None:
    out = paged_decode(*given())
    call = scene((3, 0, 20), q_len=2)
    require_right(call, out)
    torch.testing.assert_close(paged_decode_csr(*csr_given()), out)
    compiled = torch.compile(lambda *args: torch.ops.kvscope.paged_decode(*args) * 2, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*given()), out * 2)


def test_who_computed_is_counted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    call = scene((3, 0, 20), q_len=2)
    before = (decode.calls.kernel, decode.calls.reference)
    with caplog.at_level(logging.WARNING, op.__name__):
        monkeypatch.setattr(op, "launches", lambda tensor: False)
        monkeypatch.setattr(op.calls, "reference", 0)
        require_right(call, paged_decode(*given()))
        paged_decode(*given())
    assert (decode.calls.kernel, decode.calls.reference) == (before[0], 2)
    assert [record.getMessage() for record in caplog.records] == [
        "paged decode attention runs its reference in PyTorch: the kernel needs triton and a GPU"
    ]


def test_the_kernel_ran() -> None:
    pytest.importorskip("triton", reason="triton is not installed (extra cuda)")
    before = decode.calls.kernel
    paged_decode(*given())
    assert decode.calls.kernel == before + 1


def test_an_empty_batch() -> None:
    query, keys, values, tables, lengths, scale = given()
    out = paged_decode(query[:0], keys, values, tables[:0], lengths[:0], scale)
    assert out.shape == query[:0].shape


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": torch.zeros(3, 9, 4, 64)}, "9 query tokens"),
        ({"query": torch.zeros(3, 1, 3, 64)}, "3 query heads cannot share 2 KV heads"),
        ({"query": torch.zeros(3, 1, 4, 32)}, "head_dim is 32 in the query and 64 in the pool"),
        ({"query": torch.zeros(3, 1, 4, 64, dtype=torch.float16)}, "KV of float32 cannot be read for a query of fl"),
        ({"keys": torch.zeros(9, 12, 2, 64), "values": torch.zeros(9, 12, 2, 64)}, "blocks of 12 tokens"),
        ({"keys": torch.zeros(15, 16, 2, 64, dtype=torch.float16)}, "keys are float16 and values float32"),
        ({"tables": torch.zeros(3, 4, dtype=torch.int64)}, "tables must be int32"),
        ({"tables": torch.zeros(2, 4, dtype=torch.int32)}, r"block tables must be \[3, max_blocks\]"),
        ({"lengths": torch.zeros(2, dtype=torch.int32)}, "3 sequences need 3 lengths"),
        ({"key_scale": torch.ones(3)}, "key_scale must be float32, one number or one a KV head"),
        ({"format": "e4m3"}, "for uint8 KV, not for float32"),
        ({"format": "int4"}, "cannot be read as 'int4'"),
        ({"window": -1}, "cannot be below 0"),
        *(({"softcap": wrong}, "is neither 0 ") for wrong in (-1.0, float("nan"), float("inf"), 1e-40, 1e39)),
        *(({"scale": wrong}, f"scale {wrong} is no finite") for wrong in (float("nan"), float("-inf"))),
        ({"splits": 129}, "129 splits"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    names = ("query", "keys", "values", "tables", "lengths", "scale")
    call = {
        name: value.cpu() if isinstance(value, torch.Tensor) else value
        for name, value in zip(names, given(), strict=True)
    }
    with pytest.raises(BadRequest, match=words):
        paged_decode(**{**call, **change})


def apart(given: Any) -> Any:
    """Equal values, every second element of something larger."""
    return torch.stack([given, torch.ones_like(given)], -1)[..., 0]


@pytest.mark.parametrize(("form", "place"), [("tables", 3), ("tables", 4), ("csr", 3), ("csr", 4), ("csr", 5)])
def test_pages_that_are_not_contiguous_are_refused(form: str, place: int) -> None:
    """The kernel would read what lies between their elements; a broadcast one it would read past its end."""
    operator, call = (paged_decode, list(given())) if form == "tables" else (paged_decode_csr, list(csr_given()))
    call[place] = apart(call[place])
    with pytest.raises(BadRequest, match="contiguous"):
        operator(*call)
    call[place] = call[place][..., :1].expand(call[place].shape)
    with pytest.raises(BadRequest, match="contiguous"):
        operator(*call)


def test_rows_of_a_block_table_may_lie_apart() -> None:
    query, keys, values, tables, *rest = given()
    wide = torch.cat([tables, torch.full_like(tables, 1 << 30)], 1)[:, : tables.shape[1]]
    torch.testing.assert_close(paged_decode(query, keys, values, wide, *rest), paged_decode(*given()), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["key_scale", "value_scale"])
def test_scales_may_lie_apart_or_be_one_for_all_heads(name: str) -> None:
    scales = torch.tensor([0.5, 99.0, 1.75, 99.0], device=DEVICE)[::2]
    for scale in (scales, torch.tensor(0.5, device=DEVICE).expand(2)):
        expected = paged_decode(*given(), **{name: scale.contiguous()})
        torch.testing.assert_close(paged_decode(*given(), **{name: scale}), expected, rtol=0, atol=0)
    assert not torch.equal(expected, paged_decode(*given(), **{name: scales}))


def test_tensors_of_several_devices_are_refused() -> None:
    call = scene((3, 0, 20), q_len=2)
    with pytest.raises(BadRequest, match="tables on meta: one device is needed"):
        replace(call, pages=Pages(call.pages.tables.to("meta"), call.pages.lengths)).require()


def test_the_reference_looks_only_at_what_is_there() -> None:
    call = scene((0, 1, 40), q_len=3)
    assert bool(paged_decode_reference(call).isfinite().all())


def test_splits_fill_a_gpu_and_no_more() -> None:
    assert choose_splits(64 * 8, 128, 132) == 1  # 64 sequences of 8k keep an H200 busy by themselves
    assert choose_splits(8, 1024, 132) >= 132 * 2 // 8  # one sequence of 64k does not
    assert choose_splits(8, 1, 132) == choose_splits(8, 3, 132) == 1  # nothing to cut
    assert max(choose_splits(1, 10**6, sms) for sms in (1, 7, 108, 132, 148)) <= MOST_SPLITS
