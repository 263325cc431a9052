"""`kvstore tune`: every sum against a count of single steps, every size against the store's own parts, the rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvstore.errors import BadRequest
from kvstore.replay.trace import Request, excerpt, read_trace
from kvstore.table import BlockTable
from kvstore.tune.cards import card_of
from kvstore.tune.choice import BLOCKWISE, IN_RUNS, PAGE, TAIL, Bound, choose, reason
from kvstore.tune.costs import Assumptions, Costs, costs
from kvstore.tune.lengths import LONGEST, Lengths, of_distribution, of_trace
from kvstore.tune.models import model_of
from kvstore.tune.report import COLUMNS, rows
from kvstore.tune.setting import Setting, setting_of
from kvstore.tune.sharing import Sharing, sharing_of

SIZES = (8, 16, 32, 64, 128)


def some_lengths(count: int = 12) -> Lengths:
    draw = np.random.default_rng(3)
    return Lengths("drawn", draw.integers(1, 400, count), draw.integers(0, 90, count))


def moments(lengths: Lengths) -> list[int]:
    """Tokens held after the prefill and after each decode step of each request, one by one."""
    return [
        prompt + step
        for prompt, output in zip(lengths.prompts.tolist(), lengths.outputs.tolist(), strict=True)
        for step in range(max(output, 1))
    ]


def appends(lengths: Lengths) -> list[int]:
    """Tokens held after each append, one by one."""
    return [
        prompt + step
        for prompt, output in zip(lengths.prompts.tolist(), lengths.outputs.tolist(), strict=True)
        for step in range(1, output)
    ]


@pytest.mark.parametrize("size", [1, 7, *SIZES])
def test_sums_over_steps_are_those_of_a_count(size: int) -> None:
    lengths = some_lengths()
    held = moments(lengths)
    allocated = [-(-tokens // size) * size for tokens in held]
    assert lengths.held() == sum(held)
    assert lengths.empty(size) == sum(allocated) - sum(held)
    assert lengths.tail_waste(size) == pytest.approx(1 - sum(held) / sum(allocated))
    assert lengths.mean_blocks(size) == pytest.approx(sum(allocated) / size / len(held))
    grown = appends(lengths)
    assert lengths.attended == sum(grown)
    assert lengths.blocks_read(size) == sum(-(-tokens // size) for tokens in grown)
    rewritten = sum(2 * ((tokens - 1) % size + 1) - 1 for tokens in grown)
    assert lengths.tail_copies(size) == rewritten
    fresh = sum(tokens % size == 1 % size for tokens in grown)
    assert lengths.allocations(size) == fresh + len(lengths.prompts)


@pytest.mark.parametrize("size", [1, 7, *SIZES])
def test_lost_prefixes_are_those_of_a_count(size: int) -> None:
    least, room = np.array([0, 512, 700, 1024, 3]), np.array([1, 512, 1, 17, 4])
    sharing = Sharing(least, room)
    places = [[first + more for more in range(count)] for first, count in zip(least, room, strict=True)]
    assert sharing.tokens == pytest.approx(sum(float(np.mean(ends)) for ends in places))
    assert sharing.lost(size) == pytest.approx(sum(float(np.mean([end % size for end in ends])) for ends in places))
    assert sharing.blocks(size) == pytest.approx(sum(float(np.mean([end // size for end in ends])) for ends in places))
    assert sharing.windows() == pytest.approx(sum(float(np.mean([-(-end // 512) for end in ends])) for ends in places))


def request(tokens: int, *windows: int, output: int = 5) -> Request:
    return Request(0, tokens, output, np.asarray(windows, np.int64))


def test_what_a_trace_shares() -> None:
    requests = [
        request(1200, 1, 2, 3),
        request(2000, 1, 2, 4, 5),  # the next turn: it repeats the 1200 tokens before it
        request(2000, 1, 2, 4, 5),  # the same once more: all but the last token
        request(1100, 1, 6, 7),  # goes another way somewhere in its second window
        request(600, 8, 9),  # new
        request(
            513, 8, 10
        ),  # goes another way in a window of which one token could be shared, and that must be computed
    ]
    found = sharing_of(requests)
    assert found.least.tolist() == [0, 1200, 1999, 512, 0, 512]
    assert found.room.tolist() == [1, 1, 1, 512, 1, 1]
    assert found.lost(512) == 1200 % 512 + 1999 % 512 + 255.5
    assert found.loss(16) == pytest.approx((0 + 15 + 7.5) / (1200 + 1999 + 767.5 + 512))


def test_nothing_shared_is_no_loss_of_nothing() -> None:
    assert sharing_of([request(600, 1, 2)]).loss(16) is None


def test_the_excerpt_is_read_whole() -> None:
    requests = read_trace(excerpt())
    lengths = of_trace("excerpt", requests)
    assert len(lengths.prompts) == len(requests) == 600
    assert lengths.shared is not None
    whole = sum(min(512 * len(each.windows), each.input_tokens) for each in requests)
    assert 0 < lengths.shared.tokens < whole


def test_a_distribution_has_the_mean_it_was_given() -> None:
    lengths = of_distribution((2000, 1.0), (300, 0.5))
    assert lengths.prompts.mean() == pytest.approx(2000, rel=0.01)
    assert lengths.outputs.mean() == pytest.approx(300, rel=0.01)
    assert np.log(lengths.prompts).std() == pytest.approx(1.0, rel=0.01)
    assert abs(np.corrcoef(lengths.prompts, lengths.outputs)[0, 1]) < 0.05
    again = of_distribution((2000, 1.0), (300, 0.5))
    assert np.array_equal(again.outputs, lengths.outputs)
    assert set(of_distribution((7, 0), (1, 0)).prompts.tolist()) == {7}


def test_lengths_beyond_belief_are_refused() -> None:
    with pytest.raises(BadRequest, match=r"request 1: input_length 33554432"):
        of_trace("long", [request(2 * LONGEST, *range(2 * LONGEST // 512))])
    with pytest.raises(BadRequest, match="its longest is"):
        of_distribution((1e7, 3.0), (300, 0.5))


def eight_b() -> Setting:
    return setting_of(card_of("A100-80G"), model_of("llama-3-8b"))


@pytest.mark.parametrize("size", SIZES)
def test_sizes_are_those_of_the_stores_parts(size: int) -> None:
    setting, lengths = eight_b(), some_lengths()
    found = costs(setting, lengths, size, Assumptions("prompt"))
    layout = setting.layout(size)
    assert found.block_bytes == layout.block_bytes == 2 * 8 * size * 128 * 2
    assert found.blocks * layout.slot_bytes * 32 <= setting.pool_bytes < (found.blocks + 1) * layout.slot_bytes * 32
    columns = -(-int(lengths.final.max()) // size)
    few = replace(setting, used_share=0.21)  # a table that is small enough to be made
    small = costs(few, lengths, size, Assumptions("prompt"))
    assert small.table_bytes == BlockTable(small.requests, columns, size).device_table.nbytes
    assert found.window_copies == 512 // size * 32


def test_one_request_by_hand() -> None:
    setting = eight_b()
    lengths = Lengths("one", np.array([1000]), np.array([3]))  # decode steps over 1001 and 1002 tokens
    found = costs(setting, lengths, 16, Assumptions("prompt", copy_s=2e-6, allocate_s=10e-6))
    token = 2 * 32 * 8 * 128 * 2
    attention_s = 2003 * token / 2.039e12
    moved = 63 * 32 * 2e-6 + 2 * 63 * 16 * token / 2.039e12
    assert found.fetch_time == pytest.approx(moved / attention_s)
    runs = 2 * 32 * 2e-6 + 2 * 63 * 16 * token / 2.039e12
    assert found.run_fetch_time == pytest.approx(runs / attention_s)
    assert found.tail_time == pytest.approx((8 + 9 + 9 + 10) * token / 2.039e12 / attention_s)
    entries = 2 * 63 * 32 * 8 * 4 / 2.039e12
    assert found.paging_time == pytest.approx((10e-6 + entries) / attention_s)
    assert found.tail_waste == pytest.approx(1 - (1000 + 1001 + 1002) / (3 * 1008))
    assert found.prefix_loss is None
    assert costs(setting, lengths, 16, Assumptions("nothing")).copy_time == found.tail_time
    weights = 2 * 8_030_261_248
    assert found.requests == int((0.9 * 80e9 - weights) // (32 * (65536 + 128)) / 63)


def test_ranks() -> None:
    seventy = model_of("llama-3-70b")
    assert setting_of(card_of("A100-80G"), seventy).ranks == 4
    assert setting_of(card_of("H200"), seventy).ranks == 2
    assert setting_of(card_of("MI300X"), seventy).ranks == 2
    assert eight_b().ranks == 1
    assert setting_of(card_of("H100"), seventy, ranks=16).heads == 1  # 8 KV heads, each on two ranks
    with pytest.raises(BadRequest, match="8 KV heads cannot be dealt out to 3 ranks"):
        setting_of(card_of("H100"), seventy, ranks=3)
    with pytest.raises(BadRequest, match="leave no room for KV"):
        setting_of(card_of("L4"), seventy, ranks=1)


def table_for(gpu: str, model: str, lengths: Lengths, given: Assumptions | None = None) -> list[Costs]:
    setting = setting_of(card_of(gpu), model_of(model))
    return [costs(setting, lengths, size, given or Assumptions()) for size in SIZES]


def test_the_faster_the_memory_the_larger_the_block() -> None:
    lengths = of_trace("excerpt", read_trace(excerpt()))
    chosen = [
        choose(table_for(gpu, "llama-3-70b", lengths)).block_tokens for gpu in ("L40S", "A100-80G", "H200", "B200")
    ]
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[-1]


def test_no_copies_no_need_of_large_blocks() -> None:
    lengths = of_trace("excerpt", read_trace(excerpt()))
    table = table_for("H100", "llama-3-70b", lengths)
    assert choose(table).block_tokens > 16
    assert choose(table, IN_RUNS).block_tokens == 16
    still = table_for("H100", "llama-3-70b", lengths, Assumptions("nothing"))
    assert choose(still).block_tokens == 16


def test_bounds_that_no_size_keeps() -> None:
    """Short chats on a fast GPU: small blocks cost copies, large ones empty slots."""
    short = Lengths("short", np.array([60] * 4), np.array([20] * 4))
    table = table_for("B200", "llama-3.1-405b", short, Assumptions("prompt"))
    found = choose(table)
    assert found.broken
    assert "no size from 16 to 128 keeps all bounds, and this is the nearest: " in reason(table)
    assert all(not bound.kept(found.costs) for bound in found.broken)
    assert "no size keeps all bounds" in reason(table[1:])


@pytest.mark.parametrize("bounds", [BLOCKWISE, IN_RUNS])
def test_the_kernels_page_is_never_traded_away(bounds: tuple[Bound, ...]) -> None:
    one = Lengths("one", np.array([100]), np.array([10]))
    table = table_for("H100", "llama-3-8b", one)
    found = choose(table, bounds)
    assert found.block_tokens >= 16
    assert PAGE not in found.broken
    assert found.broken
    small = [costs(eight_b(), one, size, Assumptions()) for size in (2, 4, 8)]
    below = choose(small, bounds)
    assert below.block_tokens == 8
    assert PAGE in below.broken
    assert reason(small).startswith("8: the nearest of these sizes, and kernels take none of them")
    large = [costs(eight_b(), one, size, Assumptions()) for size in (256, 512)]
    assert PAGE in choose(large, bounds).broken
    assert choose(large, bounds).block_tokens == 256
    assert choose([table[0], large[1]], bounds).block_tokens == 8
    assert choose([table[-1], *large], bounds).block_tokens == 128
    assert "kernels take none of them: a page has 16 to 128 tokens" in reason(large)


@pytest.mark.parametrize(
    ("share", "shown", "said"),
    [(0.0402, "4.02!", "4.02%"), (0.04, "4.0", ""), (0.0404999, "4.05!", "4.05%"), (0.041, "4.1!", "4.1%")],
)
def test_a_breach_is_not_rounded_away(share: float, shown: str, said: str) -> None:
    table = table_for("H100", "llama-3-8b", Lengths("one", np.array([1000]), np.array([900])), Assumptions("nothing"))
    last = replace(table[1], tail_waste=share, tail_time=0.0)
    (row,) = rows([last])[2:]
    assert row[COLUMNS.index(next(column for column in COLUMNS if column.bound is TAIL))] == shown
    assert said in reason([last])
    assert "10.03!" in rows([replace(last, fetch_time=0.1003)])[2]


def test_the_choice_keeps_every_bound_and_the_size_below_does_not() -> None:
    lengths = of_trace("excerpt", read_trace(excerpt()))
    table = table_for("H100", "llama-3-70b", lengths)
    chosen = choose(table)
    assert not chosen.broken
    assert all(bound.kept(chosen.costs) for bound in BLOCKWISE)
    below = next(each for each in table if each.block_tokens == chosen.block_tokens // 2)
    assert not all(bound.kept(below) for bound in BLOCKWISE)
    assert f"at {below.block_tokens} copies would take" in reason(table)
