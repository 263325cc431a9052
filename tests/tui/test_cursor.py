"""Time on the screen: live, paused, playing; always within the data."""

from __future__ import annotations

import pytest

from tui.cursor import SPEEDS, Cursor, Mode
from tui.seek import SeekError, moment_of

LIVE = Cursor(Mode.LIVE, 100_000, 0, 100_000)
RECORDED = Cursor(Mode.PAUSED, 100_000, 0, 100_000, recorded=True)


def test_live_follows_the_newest_sample() -> None:
    assert LIVE.spanning(0, 101_000).at_ms == 101_000


def test_paused_stays_while_data_flows() -> None:
    paused = LIVE.toggled().spanning(0, 130_000)
    assert (paused.mode, paused.at_ms, paused.end_ms) == (Mode.PAUSED, 100_000, 130_000)


def test_paused_moment_that_left_the_window_moves_to_its_start() -> None:
    assert LIVE.sought(1000).spanning(50_000, 150_000).at_ms == 50_000


def test_going_on_from_the_past_plays_and_catches_up_to_live() -> None:
    back = LIVE.stepped(-10_000)
    assert (back.mode, back.at_ms) == (Mode.PAUSED, 90_000)
    playing = back.toggled().faster(1).faster(1)
    assert (playing.mode, playing.speed) == (Mode.PLAYING, 5)
    assert playing.advanced(1000).at_ms == 95_000
    assert playing.advanced(2000).mode is Mode.LIVE


def test_pausing_at_the_end_and_going_on_is_live_again() -> None:
    assert LIVE.toggled().toggled().mode is Mode.LIVE


def test_a_recording_ends_paused_and_starts_again_from_its_beginning() -> None:
    again = RECORDED.toggled()
    assert (again.mode, again.at_ms) == (Mode.PLAYING, 0)
    ended = again.advanced(200_000)
    assert (ended.mode, ended.at_ms) == (Mode.PAUSED, 100_000)


def test_home_and_end() -> None:
    assert RECORDED.home().at_ms == 0
    assert RECORDED.home().live().at_ms == 100_000
    assert RECORDED.home().live().mode is Mode.PAUSED
    assert LIVE.home().live().mode is Mode.LIVE


def test_never_outside_the_data() -> None:
    assert RECORDED.stepped(5000).at_ms == 100_000
    assert RECORDED.sought(-5).at_ms == 0


def test_speed_stops_at_both_ends() -> None:
    fast = RECORDED
    for _ in SPEEDS:
        fast = fast.faster(1)
    assert fast.speed == SPEEDS[-1]
    assert RECORDED.faster(-1).speed == 1


DAY = 1_771_149_900_000  # 2026-02-15 10:05:00 UTC
SPAN = Cursor(Mode.PAUSED, DAY, DAY - 3_600_000, DAY, recorded=True)


@pytest.mark.parametrize(
    ("text", "before_end_s"),
    [("10:02:15", 165), ("10:02", 180), ("-5m", 300), ("-1h", 3600), ("-90s", 90), ("-90", 90), ("start", 3600),
     (" END ", 0), ("-1m30s", 90)],
)  # fmt: skip
def test_seek_understands(text: str, before_end_s: int) -> None:
    assert moment_of(text, SPAN) == DAY - before_end_s * 1000


def test_a_time_of_day_after_the_end_is_yesterdays() -> None:
    assert moment_of("23:59:00", SPAN) == DAY - (10 * 3600 + 6 * 60) * 1000


@pytest.mark.parametrize("text", ["", "noon", "25:00", "10:75", "-", "-m", "5m"])
def test_seek_says_what_it_wants(text: str) -> None:
    with pytest.raises(SeekError, match="10:02:15"):
        moment_of(text, SPAN)
