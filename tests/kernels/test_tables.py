"""Block tables on the device: updates, slots of tokens, page tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.kernel_rig import copies, ints, same_as, torch

from kvstore.errors import BadRequest  # isort: skip
from kvstore.kernels.tables import (  # isort: skip
    block_table_update,
    block_table_update_reference,
    page_table,
    page_table_reference,
    token_slots,
    token_slots_reference,
)
from kvstore.table import BlockTable  # isort: skip


def table(rows: int = 4, columns: int = 6) -> Any:
    return torch.full((rows, columns), -1, dtype=torch.int32)


def filled(rows: int = 4, columns: int = 6) -> Any:
    """Every cell a block of its own, in no order."""
    mixed = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(3))
    return mixed.reshape(rows, columns).int()


@pytest.mark.parametrize(
    ("rows", "columns", "values"),
    [
        (ints(), ints(), ints()),
        (ints(2), ints(5), ints(40)),
        (ints(0, 3, 1), ints(0, 5, 2), ints(7, 8, -1)),
        (ints(0, 2), ints(1, 3), ints(7, 8, 9, 10, 11, 12).reshape(2, 3)),
        (ints(-1, 4, 1, 1, 1), ints(0, 0, -1, 6, 2), ints(7, 8, 9, 10, 11)),
        (
            torch.arange(300).int() // 6 % 4,
            torch.arange(300).int() % 6 + 6 * (torch.arange(300) >= 24).int(),
            filled(300, 1),
        ),
    ],
    ids=["nothing", "the last cell", "triples", "runs of cells", "cells that are not there", "more than a program"],
)
def test_cells_are_updated(rows: Any, columns: Any, values: Any) -> None:
    same_as(block_table_update, block_table_update_reference, table(), rows, columns, values)


def test_an_update_is_what_it_says() -> None:
    ours = same_as(block_table_update, block_table_update_reference, table(2, 3), ints(1, 0), ints(2, 0), ints(5, 6))
    assert ours[0].tolist() == [[6, -1, -1], [-1, -1, 5]]


@pytest.mark.parametrize(
    ("rows", "firsts", "counts"),
    [((), (), ()), ((2,), (0,), (1,)), ((3, 0, 1), (22, 4, 0), (2, 1, 24)), ((1, 1, 2), (0, 0, 3), (0, 3, 0))],
    ids=["nothing", "one token", "decode and prefill", "no tokens"],
)
def test_tokens_have_slots(rows: tuple[int, ...], firsts: tuple[int, ...], counts: tuple[int, ...]) -> None:
    offsets = ints(0, *np.cumsum(counts).tolist())
    out = torch.full((sum(counts),), 77, dtype=torch.int64)
    most = max(counts, default=0)
    given = filled(), ints(*rows), ints(*firsts), offsets, out, 24, 4, most
    same_as(token_slots, token_slots_reference, *given)


def test_a_token_without_a_block_has_no_slot() -> None:
    cells = ints(3, -1, 9, 1).reshape(1, 4)
    given = cells, ints(0), ints(2), ints(0, 16), torch.zeros(16, dtype=torch.int64), 9, 4, 16
    ours = same_as(token_slots, token_slots_reference, *given)
    # Tokens 2 … 17: two in block 3, four without a block, four in a block that the pool has not, four in block 1, none.
    assert ours[4].tolist() == [14, 15, *[-1] * 8, 4, 5, 6, 7, -1, -1]


def test_a_row_that_the_table_has_not_has_no_slots() -> None:
    out = torch.full((5,), 77, dtype=torch.int64)
    given = filled(), ints(7, 1, -1), ints(0, 0, 0), ints(0, 2, 3, 5), out, 24, 4, 2
    ours = same_as(token_slots, token_slots_reference, *given)
    assert [slot < 0 for slot in ours[4].tolist()] == [True, True, False, True, True]


def test_tokens_without_a_place_are_left_out() -> None:
    """Offsets that lie must not be written through: what is behind the answer is somebody else's."""
    given = filled(), ints(2, 1), ints(0, 0), ints(-1, 2, 9), torch.full((4,), -9, dtype=torch.int64), 24, 4, 7
    same_as(token_slots, token_slots_reference, *given)
    *before, base = copies((*given[:4], torch.full((12,), -9, dtype=torch.int64)))
    token_slots(*before, base[2:6], *given[5:])
    assert (base == -9).tolist() == [True] * 2 + [False] * 4 + [True] * 6


def test_many_tokens_of_one_sequence_are_several_programs() -> None:
    given = filled(2, 80), ints(1, 0), ints(5, 0), ints(0, 300, 301), torch.zeros(301, dtype=torch.int64), 160, 4, 300
    same_as(token_slots, token_slots_reference, *given)


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [((0, 0, 0, 0), (1,)), ((1, 4, 5, 24), (3, 0, 2, 1)), ((8, 0, 23, 3), (1, 2)), ((8, 0, 23, 3), ())],
    ids=["an empty sequence", "full and partial last blocks", "one is empty", "no batch"],
)
def test_page_tables_are_those_of_flashinfer(lengths: tuple[int, ...], rows: tuple[int, ...]) -> None:
    outs = (torch.full((n,), 77, dtype=torch.int32) for n in (len(rows) + 1, 24, len(rows)))
    ours = same_as(page_table, page_table_reference, filled(), ints(*lengths), ints(*rows), *outs, 4)
    host = BlockTable(4, 6, 4)
    for cells, length in zip(filled().tolist(), lengths, strict=True):
        host.append(host.open(), cells[: -(-length // 4)], length)
    expected = host.csr(list(rows))
    assert ours[3].tolist() == expected.indptr.tolist()
    assert ours[4].tolist() == [*expected.indices.tolist(), *[77] * (24 - len(expected.indices))]
    assert ours[5].tolist() == expected.last_page_len.tolist()


def test_pages_without_room_are_left_out() -> None:
    outs = (torch.full((n,), 77, dtype=torch.int32) for n in (3, 4, 2))
    ours = same_as(page_table, page_table_reference, filled(), ints(9, 12, 0, 0), ints(0, 1), *outs, 4)
    assert ours[3].tolist() == [0, 3, 6]
    assert 77 not in ours[4].tolist()


def test_a_batch_longer_than_a_program() -> None:
    lengths = torch.arange(200).int() % 25
    outs = (torch.zeros(n, dtype=torch.int32) for n in (201, 1200, 200))
    rows = torch.randperm(200, generator=torch.Generator().manual_seed(1)).int()
    same_as(page_table, page_table_reference, filled(200, 6), lengths, rows, *outs, 4)


def test_a_wrong_index_is_caught() -> None:
    with pytest.raises(AssertionError, match="argument 0 differs"):
        same_as(
            lambda cells, rows, columns, values: block_table_update(cells, rows, columns + 1, values),
            block_table_update_reference, table(), ints(1), ints(2), ints(5),
        )  # fmt: skip
    given = filled(), ints(1), ints(0), ints(0, 4), torch.zeros(4, dtype=torch.int64), 24, 4, 4
    with pytest.raises(AssertionError, match="argument 4 differs"):
        same_as(lambda cells, rows, *rest: token_slots(cells, rows + 1, *rest), token_slots_reference, *given)
    outs = (torch.zeros(n, dtype=torch.int32) for n in (2, 6, 1))
    with pytest.raises(AssertionError, match="differs"):
        same_as(
            lambda cells, lengths, *rest: page_table(cells, lengths + 1, *rest),
            page_table_reference, filled(), ints(4, 4, 4, 4), ints(2), *outs, 4,
        )  # fmt: skip


def test_what_cannot_be_is_refused() -> None:
    cells, one, two = copies((table(), ints(1), ints(1, 2)))
    slots = copies((torch.zeros(2, dtype=torch.int64),))[0]
    with pytest.raises(BadRequest, match=r"rows \[2\], firsts \[2\], offsets \[2\]"):
        token_slots(cells, two, two, two, slots, 9, 4, 1)
    with pytest.raises(BadRequest, match="do not go together"):
        token_slots(cells, one[0], one[0], one, slots, 9, 4, 1)
    for rows, columns, values in ((two, one, two), (one[0], one[0], one[0]), (one, two, one), (one, one, cells[None])):
        with pytest.raises(BadRequest, match="do not go together"):
            block_table_update(cells, rows, columns, values)
    with pytest.raises(BadRequest, match="int32"):
        block_table_update(cells, two.long(), two, two)
    lengths = cells[:, 0].contiguous()
    for wrong in ((lengths, one, one, two, one), (lengths, one, two, cells, one), (lengths, one[0], two, one, one[0])):
        with pytest.raises(BadRequest, match="do not go together"):
            page_table(cells, *wrong, 4)
    for size in (0, -4):
        with pytest.raises(BadRequest, match=f"blocks of {size} tokens"):
            page_table(cells, lengths, one, two, two, one, size)
        with pytest.raises(BadRequest, match=f"blocks of {size} tokens"):
            token_slots(cells, one, one, two, slots, 9, size, 1)


def test_slots_go_only_into_memory_of_their_own() -> None:
    """A kernel that took every second element for the next one would overwrite what lies between."""
    cells, row, first, offsets = copies((filled(), ints(1), ints(0), ints(0, 4)))
    base = torch.full((8,), -9, dtype=torch.int64, device=cells.device)
    for wrong in (base[::2], base.reshape(4, 2).t(), base[0], base.int()):
        with pytest.raises(BadRequest, match="out must be a contiguous int64"):
            token_slots(cells, row, first, offsets, wrong, 24, 4, 4)
    assert (base == -9).all()


def test_the_operators_are_what_torch_expects() -> None:
    torch.library.opcheck(block_table_update, tuple(copies((table(), ints(1, 9), ints(2, 0), ints(5, 6)))))
    out = torch.zeros(3, dtype=torch.int64)
    torch.library.opcheck(token_slots, tuple(copies((filled(), ints(1, 0), ints(3, 0), ints(0, 2, 3), out, 24, 4, 2))))
    outs = [torch.zeros(n, dtype=torch.int32) for n in (3, 9, 2)]
    torch.library.opcheck(page_table, tuple(copies((filled(), ints(1, 4, 9, 0), ints(2, 1), *outs, 4))))
