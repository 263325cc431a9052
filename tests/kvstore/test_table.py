"""The device block table: what kernels see after one upload a step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.errors import BadRequest, PoolExhausted
from kvstore.table import EMPTY, BlockTable


def test_a_step_of_many_changes_is_one_upload() -> None:
    table = BlockTable(8, 16, 16)
    rows = [table.open() for _ in range(4)]
    for row in rows:
        table.append(row, [10 * row, 10 * row + 1, 10 * row + 2], 40)
    assert table.traffic.uploads == 0
    assert (np.asarray(table.device_table) == EMPTY).all()
    sent = table.commit()
    assert (table.traffic.uploads, table.traffic.bytes) == (1, sent)
    assert sent == 2 * 4 * 12
    assert table.device_table[2, :4].tolist() == [20, 21, 22, EMPTY]
    assert table.commit() == 0
    assert table.traffic.uploads == 1


def test_unbatched_uploads_at_every_change() -> None:
    """The fault: same table on the device, an upload a change."""
    tables = [BlockTable(4, 64, 16, batched=batched) for batched in (True, False)]
    for table in tables:
        row = table.open()
        for i in range(32):
            table.append(row, [i], 16)
        table.commit()
    assert np.array_equal(tables[0].device_table, tables[1].device_table)
    assert (tables[0].traffic.uploads, tables[1].traffic.uploads) == (1, 32)


def test_csr_is_what_flashinfer_takes() -> None:
    table = BlockTable(4, 8, 16)
    first, second, empty = table.open(), table.open(), table.open()
    table.append(first, [7, 3, 5], 33)
    table.append(second, [9, 2], 32)
    csr = table.csr([second, empty, first])
    assert csr.indptr.tolist() == [0, 2, 2, 5]
    assert csr.indices.tolist() == [9, 2, 7, 3, 5]
    assert csr.last_page_len.tolist() == [16, 0, 1]
    assert {part.dtype for part in csr} == {np.dtype(np.int32)}


def test_a_tail_changes_its_slot() -> None:
    table = BlockTable(2, 4, 16)
    row = table.open()
    table.append(row, [1, 2], 20)
    table.replace_last(row, 3)
    table.append(row, [], 5)
    table.commit()
    assert table.device_table[row].tolist() == [1, 3, EMPTY, EMPTY]
    assert table.csr([row]).last_page_len.tolist() == [9]


def test_truncating_and_closing_leave_no_stale_cell() -> None:
    table = BlockTable(1, 4, 16)
    row = table.open()
    table.append(row, [4, 5, 6], 48)
    table.commit()
    table.truncate(row, 17)
    table.commit()
    assert table.device_table[row].tolist() == [4, 5, EMPTY, EMPTY]
    table.close(row)
    table.commit()
    assert (table.device_table == EMPTY).all()
    assert table.open() == row


@pytest.mark.parametrize(
    ("slots", "tokens"), [([1], 17), ([1, 2], 16), ([], 1), ([-1], 16), ([2**31], 16), ([1], -1), ([1], 0)]
)
def test_lengths_and_slots_that_cannot_be_change_nothing(slots: list[int], tokens: int) -> None:
    table = BlockTable(1, 4, 16)
    row = table.open()
    with pytest.raises(BadRequest):
        table.append(row, slots, tokens)
    assert table.tokens(row) == 0
    assert table.commit() == 0


def test_no_room_is_said() -> None:
    table = BlockTable(1, 2, 16)
    row = table.open()
    with pytest.raises(PoolExhausted, match="all 1 rows"):
        table.open()
    with pytest.raises(PoolExhausted, match="a row of the block table has 2"):
        table.append(row, [1, 2, 3], 48)
    with pytest.raises(BadRequest, match="not open"):
        table.append(5, [1], 16)
    with pytest.raises(BadRequest):
        BlockTable(2**16, 2**16, 16)


Step = st.tuples(
    st.sampled_from(["append", "truncate", "replace", "close", "commit"]), st.integers(0, 3), st.integers()
)


@settings(max_examples=150, deadline=None)
@given(st.lists(Step, max_size=60))
def test_device_equals_a_plain_list_of_lists_after_a_commit(steps: list[tuple[str, int, int]]) -> None:
    table = BlockTable(4, 6, 4)
    for _ in range(4):
        table.open()
    plain: list[list[int]] = [[] for _ in range(4)]
    tokens = [0] * 4
    for number, (what, row, value) in enumerate(steps):
        if what == "append":
            more = value % 9
            need = -(-(tokens[row] + more) // 4) - len(plain[row])
            if len(plain[row]) + need > 6:
                continue
            slots = [100 * number + i for i in range(need)]
            table.append(row, slots, more)
            plain[row] += slots
            tokens[row] += more
        elif what == "truncate":
            tokens[row] = value % (tokens[row] + 1)
            table.truncate(row, tokens[row])
            del plain[row][-(-tokens[row] // 4) :]
        elif what == "replace" and plain[row]:
            plain[row][-1] = number
            table.replace_last(row, number)
        elif what == "close":
            table.close(row)
            plain[row], tokens[row] = [], 0
            assert table.open() == row
        elif what == "commit":
            table.commit()
    table.commit()
    expected = [blocks + [EMPTY] * (6 - len(blocks)) for blocks in plain]
    assert np.asarray(table.device_table).tolist() == expected
    csr = table.csr(range(4))
    assert csr.indices.tolist() == [slot for blocks in plain for slot in blocks]
    assert np.diff(csr.indptr).tolist() == [len(blocks) for blocks in plain]
    assert csr.last_page_len.tolist() == [
        count - 4 * (len(blocks) - 1) if blocks else 0 for count, blocks in zip(tokens, plain, strict=True)
    ]
