"""Layouts: sizes by arithmetic, and a refusal that names the field."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvstore.errors import BadRequest, LayoutMismatch
from kvstore.layout import Layout

LLAMA = Layout("llama", layers=32, head_groups=8, heads=1, head_dim=128, block_tokens=16, dtype="bfloat16")


def test_sizes_are_those_of_the_arithmetic() -> None:
    assert LLAMA.block_bytes == 2 * 1 * 16 * 128 * 2 == 8192
    assert LLAMA.slot_bytes == 8192 + 128
    assert LLAMA.window_blocks == 32
    assert LLAMA.block_shape == (2, 1, 16, 128)
    # 128 KiB a token for an 8B model: 2 * layers * kv_heads * head_dim * bytes.
    assert LLAMA.block_bytes // 16 * 32 * 8 == 128 * 1024


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_id", "qwen"),
        ("layers", 2),
        ("head_groups", 4),
        ("heads", 2),
        ("head_dim", 64),
        ("block_tokens", 32),
        ("window_tokens", 1024),
        ("dtype", "float16"),
    ],
)
def test_a_different_layout_is_refused_by_the_field(field: str, value: object) -> None:
    theirs = replace(LLAMA, **{field: value})
    with pytest.raises(LayoutMismatch, match=field) as caught:
        LLAMA.require_same(theirs)
    assert str(getattr(LLAMA, field)) in str(caught.value)
    assert str(value) in str(caught.value)
    assert theirs.fingerprint != LLAMA.fingerprint


def test_a_salt_is_refused_without_showing_it() -> None:
    with pytest.raises(LayoutMismatch, match="salt") as caught:
        replace(LLAMA, salt="aa11").require_same(replace(LLAMA, salt="bb22"))
    assert "aa11" not in str(caught.value)
    assert "bb22" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"layers": 0}, "layers"),
        ({"head_dim": -1}, "head_dim"),
        ({"dtype": "int3"}, "dtype"),
        ({"block_tokens": 48}, "multiple"),
        ({"layers": 70_000}, "16 bits"),
        ({"heads": 1.5}, "heads"),
    ],
)
def test_a_geometry_that_cannot_be_is_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        replace(LLAMA, **fields)


def test_it_travels_as_json() -> None:
    assert Layout.from_json(LLAMA.as_json()) == LLAMA
    for broken in ("{", "[]", '{"model_id": "x", "wheels": 4}'):
        with pytest.raises(BadRequest):
            Layout.from_json(broken)
