"""The device bitmap: runs first, all or nothing, no slot twice, none lost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernels.kernel_rig import DEVICE, copies, ints, same_as, torch

from kvstore.errors import BadRequest  # isort: skip
from kvstore.kernels import bitmap as bitmap_kernels  # isort: skip
from kvstore.kernels.bitmap import (  # isort: skip
    bitmap_allocate,
    bitmap_allocate_reference,
    bitmap_count,
    bitmap_count_reference,
    bitmap_free,
    bitmap_free_reference,
    new_bitmap,
)
from kvstore.kernels.bitmap.reference import pack, unpack  # isort: skip
from kvstore.kernels.bitmap.search import claim_run  # isort: skip
from kvstore.kernels.bitmap.state import CURSOR, FREE, REFUSED, SHORT, STATE_WORDS, STRANGE, TWICE  # isort: skip
from kvstore.kernels.language import jit, tl  # isort: skip


def bitmap(flags: str | Any, cursor: int = 0) -> tuple[Any, Any, int]:
    """Words, state and size of a bitmap; "1" is a free slot."""
    free = torch.tensor([flag == "1" for flag in flags]) if isinstance(flags, str) else flags
    words, state = new_bitmap(len(free))
    words = pack(torch.nn.functional.pad(free, (0, 32 * len(words) - len(free))))
    state[FREE], state[CURSOR] = int(free.sum()), cursor
    return words, state, len(free)


def allocate(flags: str | Any, *counts: int, cursor: int = 0, width: int | None = None) -> tuple[list[list[int]], Any]:
    """The slots of each request, and the state behind it; one after another, so that only one answer is right."""
    words, state, slots = bitmap(flags, cursor)
    got = []
    for count in counts:
        out = torch.full((1, width or max(count, 1)), 77, dtype=torch.int32)
        words, state, _, out, _ = same_as(
            bitmap_allocate, bitmap_allocate_reference, words.cpu(), state.cpu(), ints(count), out, slots
        )
        assert int(bitmap_count(words)) == int(state[FREE]), "what is free is not what is counted"
        got.append([slot for slot in out[0].tolist() if slot >= 0])
    return got, state.cpu()


def test_one_run_if_there_is_one() -> None:
    got, _ = allocate("1" * 10 + "0" * 3 + "1" * 30 + "0" + "1" * 20, 12, cursor=0)
    assert got == [list(range(13, 25))]


def test_a_run_over_many_words_begins_and_ends_within_one() -> None:
    flags = torch.zeros(400, dtype=torch.bool)
    flags[29:301] = True
    flags[330:380] = True
    assert allocate(flags, 272, 45, 5)[0] == [
        list(range(29, 301)), list(range(330, 375)), list(range(375, 380))
    ]  # fmt: skip


def test_without_a_run_the_longest_halves_then_single_slots() -> None:
    flags = torch.zeros(256, dtype=torch.bool)
    flags[[3, 70, 71, 200, 210, 220]] = True
    flags[100:110] = True
    (got,), _ = allocate(flags, 16)
    assert got[:8] == list(range(100, 108))
    assert sorted(got[8:]) == [3, 70, 71, 108, 109, 200, 210, 220]


def test_the_next_search_begins_behind_the_last() -> None:
    got, state = allocate("1" * 128, 40, 20, 40, cursor=64)
    assert [slots[0] for slots in got] == [64, 104, 0], "the last run of 40 is the first one"
    assert int(state[CURSOR]) == 164
    assert allocate("1" * 64, 5, cursor=10)[0] == [[10, 11, 12, 13, 14]], "not from the start of the word"


def test_more_than_there_is_gets_nothing_and_takes_nothing() -> None:
    got, state = allocate("1" * 20, 21, 20, 1)
    assert got == [[], list(range(20)), []]
    assert state[REFUSED] == 2
    assert state[FREE] == 0


def test_more_than_the_answer_holds_is_refused() -> None:
    got, state = allocate("1" * 20, 6, width=5)
    assert got == [[]]
    assert state[FREE] == 20
    assert state[REFUSED] == 1


def test_nothing_asked_is_nothing_refused() -> None:
    got, state = allocate("1" * 20, 0)
    assert got == [[]]
    assert state[REFUSED] == 0


@pytest.mark.parametrize("slots", [1, 31, 32, 33, 95])
def test_every_slot_is_given_once_and_none_beyond_the_last(slots: int) -> None:
    words, state = new_bitmap(slots, DEVICE)
    out = torch.zeros(1, slots, dtype=torch.int32, device=DEVICE)
    bitmap_allocate(words, state, ints(slots).to(DEVICE), out, slots)
    assert sorted(out[0].tolist()) == list(range(slots))
    assert int(bitmap_count(words)) == 0


@pytest.mark.parametrize("share", [0.4, 0.9, 0.99])
def test_a_batch_of_requests_on_a_fragmented_bitmap(share: float) -> None:
    random = torch.Generator().manual_seed(int(share * 100))
    words, state, slots = bitmap(torch.rand(300, generator=random) < share, cursor=77)
    before, counts = unpack(words), ints(3, 60, 0, 250)
    out = torch.zeros(4, 250, dtype=torch.int32)
    given = words, state, counts, out, slots
    # Programs that run at once may come to other slots: only one after another they are those of the reference.
    ours = same_as(bitmap_allocate, bitmap_allocate_reference, *given) if DEVICE == "cpu" else copies(given)
    if DEVICE != "cpu":
        bitmap_allocate(*ours)
    taken = ours[3][ours[3] >= 0].cpu()
    assert len(taken.unique()) == len(taken)
    assert before[taken.long()].all()
    after = before.clone()
    after[taken.long()] = False
    assert torch.equal(unpack(ours[0].cpu()), after)
    assert int(ours[1][FREE]) == int(after.sum())
    assert all(int((row >= 0).sum()) in (0, count) for row, count in zip(ours[3], counts.tolist(), strict=True))


@jit
def claim_once(words, answer, start, length, GROUP: tl.constexpr):  # noqa: N803
    tl.store(answer, claim_run(words, start, length, GROUP))


@pytest.mark.parametrize("taken", [5, 40, 1000, 2103, None], ids=["the first", "early", "late", "the last", "none"])
def test_a_run_that_somebody_has_a_slot_of_is_given_back_whole(taken: int | None) -> None:
    """What a race looks like to the loser: the run was free when it was found. Slots 5 … 2103 are claimed in atomics
    of 32 words each; their neighbours are free and stay so."""
    flags = torch.ones(2200, dtype=torch.bool)
    if taken is not None:
        flags[taken] = False
    words = bitmap(flags)[0].to(DEVICE)
    answer = torch.full((1,), 7, dtype=torch.int32, device=DEVICE)
    claim_once[(1,)](words, answer, 5, 2099, GROUP=32, num_warps=1)
    if taken is None:
        flags[5:2104] = False
    assert int(answer) == (taken is None)
    assert torch.equal(unpack(words.cpu())[:2200], flags)


def test_what_is_given_back_can_be_had_again() -> None:
    words, state = new_bitmap(70, DEVICE)
    out = torch.zeros(2, 40, dtype=torch.int32, device=DEVICE)
    bitmap_allocate(words, state, ints(30, 40).to(DEVICE), out, 70)
    bitmap_free(words, state, out, 70)
    assert state.tolist()[:6] == [70, 70, 0, 0, 0, 0]
    assert int(bitmap_count(words)) == 70


def test_slots_that_are_free_or_do_not_exist_are_not_counted() -> None:
    words, state, slots = bitmap("1001" * 20)
    given = words, state, ints(1, -1, 2, 1, 0, 80, 2**31 - 1, -(2**31)), slots
    ours = same_as(bitmap_free, bitmap_free_reference, *given)
    assert [int(ours[1][place]) for place in (FREE, TWICE, STRANGE)] == [42, 2, 2]


def test_nothing_given_back_is_nothing() -> None:
    same_as(bitmap_free, bitmap_free_reference, *bitmap("10")[:2], ints(), 2)


def test_a_count_that_lies_hangs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bitmap_kernels, "PATIENCE", 2)
    words, state, slots = bitmap("1" * 40 + "0" * 20)
    state[FREE] = 60
    out = torch.zeros(1, 50, dtype=torch.int32)
    ours = same_as(bitmap_allocate, bitmap_allocate_reference, words, state, ints(50), out, slots)
    assert ours[1][SHORT] == 1
    assert int(bitmap_count(ours[0])) == 40
    assert (ours[3] == -1).all()


@pytest.mark.parametrize("words", [1, 32, 1500])
def test_bits_are_counted(words: int) -> None:
    random = torch.Generator().manual_seed(words)
    given = torch.randint(-(2**31), 2**31, (words,), generator=random, dtype=torch.int64).int()
    assert int(bitmap_count(given.to(DEVICE))) == int(bitmap_count_reference(given))


def test_a_wrong_bit_is_caught() -> None:
    words, state, slots = bitmap("0" * 64)
    with pytest.raises(AssertionError, match="argument 0 differs"):
        same_as(
            lambda words, state, given, total: bitmap_free(words, state, given + 1, total),
            bitmap_free_reference, words, state, ints(5), slots,
        )  # fmt: skip
    with pytest.raises(AssertionError, match="differs"):
        same_as(
            lambda words, state, counts, out, total: bitmap_allocate(words, state, counts + 1, out, total),
            bitmap_allocate_reference, *bitmap("1" * 64)[:2], ints(5), torch.zeros(1, 9, dtype=torch.int32), 64,
        )  # fmt: skip


def test_what_cannot_be_is_refused() -> None:
    words, state = new_bitmap(64, DEVICE)
    out = torch.zeros(2, 4, dtype=torch.int32, device=DEVICE)
    with pytest.raises(BadRequest, match="do not go with"):
        bitmap_allocate(words, state, out[0].contiguous(), out, 64)
    with pytest.raises(BadRequest, match="int32"):
        bitmap_free(words, state, out.long(), 64)
    for slots in (0, 2**30):
        with pytest.raises(BadRequest, match="cannot be"):
            new_bitmap(slots)


@pytest.mark.parametrize("slots", [-5, 0, 32, 65, 40_000, 2**31 - 1])
def test_a_size_that_the_words_do_not_have_is_refused(slots: int) -> None:
    """40 slots are two words. Bits of a larger bitmap would be set behind them, in what lies there."""
    words, state = new_bitmap(40, DEVICE)
    guarded = torch.zeros(256, dtype=torch.int32, device=DEVICE)
    guarded[:2] = words
    given, out = ints(39, 3203).to(DEVICE), torch.zeros(1, 4, dtype=torch.int32, device=DEVICE)
    for operator, rest in ((bitmap_free, (given, slots)), (bitmap_allocate, (ints(2).to(DEVICE), out, slots))):
        with pytest.raises(BadRequest, match="no bitmap of"):
            operator(guarded[:2], state, *rest)
        with pytest.raises(BadRequest, match="no bitmap of 40 slots"):
            operator(guarded[:2], state[:1], *rest[:-1], 40)
        with pytest.raises(BadRequest, match="no bitmap of 40 slots"):
            operator(guarded[:2].reshape(2, 1), state, *rest[:-1], 40)
    with pytest.raises(BadRequest, match="flat"):
        bitmap_count(guarded.reshape(2, 128))
    assert guarded[2:].eq(0).all()
    assert torch.equal(state, new_bitmap(40, DEVICE)[1])


def test_the_operators_are_what_torch_expects() -> None:
    words, state = new_bitmap(64, DEVICE)
    counts, out = ints(3, 70).to(DEVICE), torch.zeros(2, 70, dtype=torch.int32, device=DEVICE)
    torch.library.opcheck(bitmap_allocate, (words, state, counts, out, 64))
    torch.library.opcheck(bitmap_free, (words, state, counts, 64))
    torch.library.opcheck(bitmap_count, (words,))
    assert state.shape == (STATE_WORDS,)
