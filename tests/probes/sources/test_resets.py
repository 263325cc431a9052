"""Counters that fall: a restart, a crash loop, and several processes behind one address."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from probes.attach import Attachment, attach
from probes.columns import is_sample
from probes.exposition import Family
from probes.promql.value import Vector
from probes.sources.resets import FELL, MIXED, counts
from tests.endpoints import Endpoint
from tui.panels import PANELS
from tui.reading import EntityReading, State, read

_PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} %(running)d
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0"} %(tokens)d
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0"} %(more)d
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="1.0"} %(requests)d
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} %(requests)d
vllm:time_to_first_token_seconds_sum{engine="0"} 1
vllm:time_to_first_token_seconds_count{engine="0"} %(requests)d
"""
T0 = 1_700_000_000_000


def page(tokens: int) -> str:
    return _PAGE % {"running": tokens % 7, "tokens": tokens, "more": tokens // 2, "requests": tokens // 10}


async def watched(tokens: Sequence[int], step_ms: int = 1000) -> Attachment:
    """A target whose page has these tokens, one a scrape."""
    with Endpoint() as endpoint:
        attachment = attach([endpoint.target])
        for at, count in enumerate(tokens):
            endpoint.serve(page(count))
            await attachment.cycle(T0 + at * step_ms)
        await attachment.close()
    return attachment


def held(attachment: Attachment, name: str) -> list[float]:
    """The samples of a series, in the order in which they came."""
    (frame,) = attachment.store.frames
    (row,) = frame.rows_named(name) or (None,)
    if row is None:
        return []
    values = frame.values[[labels.name for labels in frame.labels].index(name)]
    return [float(value) for value in values[is_sample(values)]]


def rates(attachment: Attachment, at_ms: int) -> list[float]:
    found = attachment.view.instant("rate(vllm:prompt_tokens_total[10s])", at_ms)
    assert isinstance(found, Vector)
    return [float(value) for value in found.values[found.present]]


def reading(attachment: Attachment, at_ms: int) -> EntityReading:
    (one,) = (row for row in read(attachment.view, at_ms, 10_000, PANELS) if row.labels.get("instance"))
    return one


async def test_a_fall_is_a_reset_without_a_start_time() -> None:
    attachment = await watched([1000, 1010, 1020, 0, 10, 20])
    assert held(attachment, FELL) == [5.0], "two token counters, two buckets and the count"
    assert held(attachment, MIXED) == []
    assert attachment.statuses[0].error is None, "one restart is no trouble"
    value = reading(attachment, T0 + 5000).values["kv:prompt_tokens:rate"]
    assert value.state is State.RESET
    assert value.value is not None
    assert 0 < value.value < 12, "the fall is no progress"


async def test_a_process_that_restarts_again_and_again_is_told_and_its_rates_stay() -> None:
    attachment = await watched([1000, 1010, 0, 10, 20, 0, 10, 20, 0, 10])
    (status,) = attachment.statuses
    assert (status.state, status.error) == (
        "fresh",
        "its counters began anew 3 times within five minutes: it restarts again and again",
    )
    assert held(attachment, MIXED) == []
    value = reading(attachment, T0 + 9000).values["kv:prompt_tokens:rate"]
    assert (value.state, value.value is not None) == (State.RESET, True)


@pytest.mark.parametrize("step_ms", [1000, 15_000])
@pytest.mark.parametrize("turns", ["ABABABABAB", "AABABBBABAA", "AAAAAAABAB", "ABCABCCAB"])
async def test_processes_that_take_turns_at_one_address_have_no_rate(turns: str, step_ms: int) -> None:
    base = {"A": 5_000, "B": 444_000, "C": 20_000}
    attachment = await watched([base[one] + 10 * at for at, one in enumerate(turns)], step_ms)
    (status,) = attachment.statuses
    assert status.state == "fresh"
    assert (status.error or "").startswith("several processes answer at this address in turn")
    end_ms = T0 + (len(turns) - 1) * step_ms
    assert rates(attachment, end_ms) == [], "no change from one process to the other counts as progress"
    one = reading(attachment, end_ms)
    value = one.values["kv:prompt_tokens:rate"]
    assert (value.value, value.state) == (None, State.RESET)
    assert "several processes answer at this address" in value.why
    assert one.values["kv:requests_running"].state is State.FRESH, "a gauge is what it is"
    assert held(attachment, MIXED)[-1] == 1


async def test_an_address_that_has_one_process_again_is_trusted_again() -> None:
    turns = [1000, 9000, 1010, 9010]
    later = [9010 + 10 * at for at in range(1, 40)]
    attachment = await watched([*turns, *later], 10_000)
    assert attachment.statuses[0].error is None
    assert rates(attachment, T0 + 42 * 10_000) == [], "10 s hold a single sample"
    found = attachment.view.instant("rate(vllm:prompt_tokens_total[30s])", T0 + 42 * 10_000)
    assert isinstance(found, Vector)
    assert found.values[found.present].tolist() == pytest.approx([1.0])


async def test_one_that_is_no_counter_in_truth_says_nothing_of_the_process() -> None:
    odd = "".join(f"# TYPE c{n} counter\nc{n}_total 1000\n" for n in range(30)) + "# TYPE odd counter\nodd_total %d\n"
    with Endpoint() as endpoint:
        attachment = attach([endpoint.target])
        for at in range(10):
            endpoint.serve(odd % (100 if at % 2 else 5))
            await attachment.cycle(T0 + at * 1000)
        await attachment.close()
    assert (attachment.statuses[0].error, held(attachment, MIXED)) == (None, [])


@pytest.mark.parametrize(
    ("name", "family", "kind", "told"),
    [
        ("x_total", "x_total", "counter", True),
        ("x_total", "x", "counter", True),
        ("x", "x", "counter", True),
        ("x_total", "x_total", "gauge", False),
        ("x_bucket", "x", "histogram", True),
        ("x_sum", "x", "histogram", False),
        ("x_count", "x", "summary", True),
        ("x_bucket", "x", "gaugehistogram", False),
        ("x_count", "x_count", "gauge", False),
        ("x_total", "x_total", "untyped", True),
    ],
)
def test_which_series_only_grow(name: str, family: str, kind: str, told: bool) -> None:
    families = {family: Family(family, kind)}
    assert counts(name, families) is told
    assert not counts("elsewhere", families)


def recorded(tmp_path: Path, tokens: Sequence[tuple[float, int]], name: str = "x.om") -> Attachment:
    lines = []
    for time, count in tokens:
        for line in page(count).splitlines():
            lines.append(line if line.startswith("#") else f"{line} {T0 // 1000 + time}")
    path = tmp_path / name
    path.write_text("\n".join([*dict.fromkeys(lines), "# EOF", ""]))
    return attach([str(path)])


def test_a_recording_that_holds_several_processes_in_one_series_says_so(tmp_path: Path) -> None:
    turns = [(2 * at + offset, base + 10 * at) for at in range(20) for offset, base in ((0, 5000), (0.7, 99_000))]
    attachment = recorded(tmp_path, turns)
    assert (attachment.statuses[0].error or "").startswith("x: several processes answer at this address in turn")
    value = reading(attachment, T0 + 38_700).values["kv:prompt_tokens:rate"]
    assert (value.value, value.state) == (None, State.RESET)
    restarted = recorded(tmp_path, [(at, 1000 + 10 * at if at < 10 else 10 * at) for at in range(20)], "y.om")
    assert restarted.statuses[0].error is None
    assert reading(restarted, T0 + 12_000).values["kv:prompt_tokens:rate"].state is State.RESET


def test_a_recording_of_targets_folded_into_one_is_refused(tmp_path: Path) -> None:
    turns = [(at, base + 10 * at) for at in range(20) for base in (5000, 99_000)]
    attachment = recorded(tmp_path, turns)
    (status,) = attachment.statuses
    assert (status.state, attachment.store.samples) == ("not-exposition", 0)
    assert "samples have another value than the same series at the same time" in (status.error or "")
