"""When the questions are asked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from playbooks.grid import MAX_STEPS, Grid, prom_duration

START = 1_790_000_000_000


@given(span_s=st.integers(0, 7 * 86_400), interval_ms=st.sampled_from([500, 1_000, 5_000, 15_000, 60_000]))
def test_steps_end_at_the_end_and_never_reach_before_the_data(span_s: int, interval_ms: int) -> None:
    grid = Grid(START, START + span_s * 1000, interval_ms)
    times = grid.times
    assert times[-1] == grid.end_ms
    assert 1 <= len(times) <= MAX_STEPS + 1
    assert grid.step_ms % interval_ms == 0
    assert (np.diff(times) == grid.step_ms).all()
    assert times[0] >= min(grid.end_ms, START + grid.window_ms), "the first step has a filled window"


@pytest.mark.parametrize(("interval_ms", "window_ms"), [(1_000, 60_000), (15_000, 60_000), (30_000, 120_000)])
def test_the_window_is_four_intervals_and_at_least_a_minute(interval_ms: int, window_ms: int) -> None:
    grid = Grid(START, START + 900_000, interval_ms)
    assert grid.window_ms == window_ms
    assert grid.fill("rate(x[$window])") == f"rate(x[{window_ms // 60_000}m])"


def test_a_short_window_is_one_step() -> None:
    assert Grid(START, START + 20_000, 1_000).times.tolist() == [START + 20_000]


def test_the_baseline_is_the_first_quarter_and_none_in_a_short_window() -> None:
    grid = Grid(START, START + 600_000, 5_000)
    mask = grid.baseline
    assert mask is not None
    assert grid.times[mask].max() == START + 150_000
    assert not mask[-1]
    assert Grid(START, START + 179_000, 5_000).baseline is None


def test_placeholders_are_filled() -> None:
    grid = Grid(START, START + 300_000, 5_000)
    assert grid.fill("a[$window] b[$span] c[$recent] d[$interval]") == "a[1m] b[5m] c[30s] d[5s]"
    slow = Grid(START, START + 3_600_000, 60_000)
    assert slow.fill("a[$window] b[$span] c[$recent] d[$interval]") == "a[4m] b[1h] c[4m] d[1m]"


def test_the_onset_is_asked_with_short_ranges_only() -> None:
    finer = Grid(START, START + 300_000, 5_000).finer()
    assert finer.fill("a[$window] c[$recent] b[$span]") == "a[15s] c[15s] b[5m]"
    assert finer.times[0] < Grid(START, START + 300_000, 5_000).times[0]


def test_a_shift_moves_both_ends() -> None:
    grid = Grid(START, START + 300_000, 5_000, against_ms=60_000)
    moved = grid.shifted(60_000)
    assert (moved.start_ms, moved.end_ms) == (START - 60_000, START + 240_000)
    assert (moved.times == grid.times - 60_000).all()


@pytest.mark.parametrize(
    ("ms", "text"), [(3_600_000, "1h"), (5_400_000, "90m"), (90_000, "90s"), (1_500, "1500ms"), (0, "0ms")]
)
def test_durations_are_promql(ms: int, text: str) -> None:
    assert prom_duration(ms) == text
