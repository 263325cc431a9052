"""The paged decode kernel against float64: dtypes, layouts, lengths, windows, splits, page tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra cuda)")
pytest.importorskip("triton", reason="triton is not installed (extra cuda)")

import torch

from kvstore.kernels.decode import Pages, launch, paged_decode_reference
from tests.kernels.decode_rig import DEVICE, computed, require_right, scene

RAGGED = (0, 1, 15, 16, 17, 70)


@pytest.mark.parametrize(
    ("block_tokens", "dtype"),
    [
        (8, torch.float16),
        (8, torch.bfloat16),
        (16, torch.float32),
        (16, torch.bfloat16),
        (32, torch.float16),
        (64, torch.float32),
        (64, torch.bfloat16),
        (128, torch.float16),
    ],
    ids=str,
)
def test_block_sizes(block_tokens: int, dtype: Any) -> None:
    """The last one or two blocks of each sequence are partly filled; 130 tokens are more than a step of any kernel."""
    call = scene((130, 0, 1, block_tokens), dtype=dtype, block_tokens=block_tokens, seed=block_tokens)
    require_right(call, computed(call))


@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 112, 128, 192, 256])
def test_head_dimensions(head_dim: int) -> None:
    call = scene((33, 5), dtype=torch.float16, head_dim=head_dim, kv_heads=1, seed=head_dim)
    require_right(call, computed(call))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "q_len"), [(4, 4, 1), (6, 2, 3), (8, 1, 2), (7, 1, 5), (16, 1, 8), (2, 1, 8)], ids=str
)
def test_groups_of_heads_and_several_queries(heads: int, kv_heads: int, q_len: int) -> None:
    """Also more rows than a program takes, numbers that are no powers of two, and more queries than tokens."""
    call = scene((0, 1, 4, 8, 40), heads=heads, kv_heads=kv_heads, q_len=q_len, seed=heads)
    out = computed(call)
    require_right(call, out)
    assert bool((out[1, : q_len - 1] == 0).all())  # before the sequence's only token there is nothing to see


@pytest.mark.parametrize("splits", [1, 3, 20])
def test_splits(splits: int) -> None:
    """Twenty are more than the longest sequence has steps, and than are added up at once."""
    call = scene((0, 1, 300), heads=2, kv_heads=1, q_len=2, seed=splits)
    require_right(call, computed(call, splits))


@pytest.mark.parametrize("window", [1, 2, 16, 69, 70, 71])
def test_window_edges(window: int) -> None:
    """Of 70 tokens and two queries the window of 69 leaves one out for the last, of 70 none; 131 are two steps."""
    call = scene((1, 16, 70, 131), kv_heads=1, q_len=2, window=window, seed=window)
    require_right(call, computed(call, splits=2))


@pytest.mark.parametrize("window", [2**30, 2**31 - 9, 2**31 - 8, 2**31 - 1, 2**40])
def test_a_window_without_an_end_is_none(window: int) -> None:
    """Also where the sequence is shorter than the query: positions before its first token count from below 0."""
    call = scene((1, 4, 20), kv_heads=1, q_len=8)
    require_right(call, computed(replace(call, window=window)))


def test_blocks_before_the_window_are_not_looked_at() -> None:
    """They may have been given away: their table entries are no blocks."""
    call = scene((150, 67), window=20, block_tokens=8)
    tables = call.pages.tables.clone()
    for row, length in enumerate((150, 67)):
        tables[row, : (length - 20) // 8] = 1 << 30
    require_right(call, computed(replace(call, pages=Pages(tables, call.pages.lengths)), splits=2))


def test_soft_cap() -> None:
    call = scene(RAGGED, softcap=1.5, scale=1.0)
    require_right(call, computed(call, splits=2))
    without = replace(call, softcap=0.0)
    assert float((computed(without) - computed(call)).abs().max()) > 0.1


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("softcap", [1e-30, 0.05, 50.0, 1e4, 1e30])
def test_a_cap_of_any_size(softcap: float) -> None:
    """Scores of some ones, and some of exactly 0, far below the cap, near it and far above."""
    call = scene((40,), heads=2, kv_heads=1, softcap=softcap, scale=0.4)
    call.query[0, 0, 0] = 0.0
    require_right(call, computed(call))


@pytest.mark.parametrize("scale", [1e3, 1e-6])
def test_scores_of_any_size(scale: float) -> None:
    """Softmax of thousands is one token's, of nothing their mean; neither overflows, in one part or several."""
    call = scene(RAGGED, scale=scale, q_len=2)
    one, several = computed(call, splits=1), computed(call, splits=3)
    for out in (one, several):
        worst = float((out.double() - paged_decode_reference(call)).abs().max())
        assert worst < 1e-3  # a score of 1e4 has an ulp of 1e-3 in float32


@pytest.mark.parametrize("lengths", [RAGGED, (0, 0), (64,)], ids=str)
def test_flashinfer_pages(lengths: tuple[int, ...]) -> None:
    call = scene(lengths, seed=7)
    counts = [-(-length // 16) for length in lengths]
    indptr = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()])
    indices = torch.cat([call.pages.tables[row, :count] for row, count in enumerate(counts)])
    last = torch.tensor(
        [length - (count - 1) * 16 if count else 0 for length, count in zip(lengths, counts, strict=True)]
    )
    pages = Pages(*(given.to(DEVICE, torch.int32) for given in (indices, last, indptr)))
    by_csr = replace(call, pages=pages).require()
    assert torch.equal(paged_decode_reference(by_csr), paged_decode_reference(call))
    assert torch.equal(computed(by_csr, splits=2), computed(call, splits=2))


def test_any_strides() -> None:
    """Tokens before heads or heads before tokens, K and V of one pool or of two, a query that is a view."""
    call = scene(RAGGED, q_len=2, seed=9)
    wide = torch.randn(*call.query.shape[:3], 2 * call.query.shape[3])
    wide[..., : call.query.shape[3]] = call.query
    other = replace(call, query=wide[..., : call.query.shape[3]], keys=call.keys.contiguous())
    assert other.keys.stride() != call.keys.stride()
    assert torch.equal(computed(other), computed(call))


def test_splits_read_only_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their workspace holds whatever was in memory before."""
    call = scene((0, 1, 200), q_len=2)
    expected = computed(call, splits=5)

    def poisoned(*shape: Any, **options: Any) -> Any:
        return torch.full(*shape, float("nan"), **options)

    monkeypatch.setattr(launch.torch, "empty", poisoned)
    assert torch.equal(computed(call, splits=5), expected)


@pytest.mark.parametrize("wrong", ["block", "length", "head", "token"])
def test_a_wrong_index_is_seen(wrong: str) -> None:
    """The comparison itself: a kernel that looked at one wrong block, token or head would not pass."""
    call = scene((40, 70), seed=3)
    tables, lengths = call.pages.tables.clone(), call.pages.lengths.clone()
    if wrong == "block":
        tables[1, 2] = tables[1, 3]
    if wrong == "length":
        lengths[1] -= 1
    keys = call.keys.roll(1, 2) if wrong == "head" else call.keys.roll(1, 1) if wrong == "token" else call.keys
    out = computed(replace(call, keys=keys, pages=Pages(tables, lengths)))
    with pytest.raises(AssertionError, match="off by"):
        require_right(call, out)
