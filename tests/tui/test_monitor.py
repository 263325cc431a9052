"""The monitor on real attachments: a recording that is replayed, an endpoint that lives, hangs and dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from probes.attach import Attachment, attach
from probes.labels import Labels
from tests.endpoints import BEHAVIOURS, Endpoint, Exchange
from tests.live.living_page import LivingPage
from tests.tui.test_reading import END_MS, START_S, STEP_S, engines
from tui.cursor import Cursor, Mode
from tui.draw import verdict
from tui.draw.canvas import UNICODE
from tui.messages import Failed, Ticked
from tui.monitor import Monitor
from tui.options import Options
from tui.reading import FLEET, State
from tui.snapshot import Snapshot
from tui.source_views import PATIENT
from tui.windows import filled, stretches

DEADLINE_S = 20.0
START_MS = START_S * 1000
POD = Labels.of({"instance": "pod-1:8000", "engine": "0"})


class Inbox:
    """What the monitor posted, and waiting for something in it."""

    def __init__(self) -> None:
        self.messages: list[object] = []
        self._news = threading.Condition()

    def post(self, message: object) -> bool:
        with self._news:
            self.messages.append(message)
            self._news.notify_all()
        return True

    def shot(self, wanted: Callable[[Snapshot], bool]) -> Snapshot:
        """The newest snapshot that is as wanted."""
        return self._wait(lambda m: isinstance(m, Ticked) and wanted(m.shot)).shot  # type: ignore[attr-defined,no-any-return]

    def told(self, kind: type[object]) -> object:
        return self._wait(lambda m: isinstance(m, kind))

    def clear(self) -> None:
        with self._news:
            self.messages.clear()

    def _wait(self, wanted: Callable[[object], bool]) -> object:
        end = time.monotonic() + DEADLINE_S
        with self._news:
            while True:
                for message in reversed(self.messages):
                    if wanted(message):
                        return message
                if not self._news.wait(end - time.monotonic()):
                    raise AssertionError(f"not posted in time; last: {self.messages[-1:]}")


@contextmanager
def running(make: Callable[[], Attachment], options: Options | None = None) -> Iterator[tuple[Monitor, Inbox]]:
    inbox = Inbox()
    monitor = Monitor(make, inbox.post, options or Options(interval_ms=100))
    monitor.start()
    try:
        yield monitor, inbox
    finally:
        monitor.stop()
        monitor.join(DEADLINE_S)
        assert not monitor.is_alive()


def waiting(shot: Snapshot, panel: str = "kv:requests_running") -> list[float | None]:
    return [row.value(panel) for row in shot.rows]


def test_a_recording_opens_at_its_end_with_its_history(tmp_path: Path) -> None:
    made = engines(tmp_path)
    with running(lambda: made) as (_, inbox):
        shot = inbox.shot(lambda s: bool(s.rows))
        assert (shot.cursor.mode, shot.time_ms) == (Mode.PAUSED, END_MS)
        assert waiting(shot) == [3.0, 4.0]
        assert shot.fleet.value("kv:requests_running") == 7.0
        trail = shot.trail("kv:pool_usage_ratio", POD)
        assert trail.times == tuple(range(START_MS, END_MS + 1, STEP_S * 1000))
        assert set(trail.values) == {0.5}
        assert shot.trail("kv:requests_running", FLEET).values[-1] == 7.0
        assert shot.sources[0].families == 7
        assert "kv:pool_usage_ratio" in inbox.shot(lambda s: bool(s.sources[0].present)).sources[0].present
        assert inbox.shot(lambda s: s.diagnosis is not None).diagnosis is not None


def test_the_first_data_is_shown_as_soon_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer comes after the first picture, and long before the next tick."""
    asked_again = threading.Event()

    def late(exchange: Exchange) -> None:
        asked_again.wait()
        exchange.answer(exchange.endpoint.page)

    monkeypatch.setitem(BEHAVIOURS, "late", late)
    monkeypatch.setattr("tui.monitor._PATIENCE", 0.001)
    options = Options(interval_ms=10 * round(DEADLINE_S) * 1000)
    with Endpoint() as endpoint:
        endpoint.behave("late")
        with running(lambda: attach([endpoint.target], interval_ms=options.interval_ms), options) as (_, inbox):
            assert not inbox.shot(lambda s: bool(s.sources) and s.sources[0].state == "timeout").rows
            asked_again.set()
            shot = inbox.shot(lambda s: bool(s.rows))
            assert shot.sources[0].state == "fresh"
            assert shot.rows[0].value("kv:pool_usage_ratio") == 0.25


def test_every_moment_of_a_recording_can_be_sought(tmp_path: Path) -> None:
    made = engines(tmp_path)
    with running(lambda: made) as (monitor, inbox):
        inbox.shot(lambda s: bool(s.rows))
        monitor.move(lambda cursor: cursor.sought(START_MS + 30_000))
        shot = inbox.shot(lambda s: s.time_ms == START_MS + 30_000)
        assert shot.trail("kv:requests_running", POD).times[-1] == START_MS + 30_000
        assert shot.rows[1].values["kv:restarts"].value == 0.0  # the restart lies ahead
        monitor.move(Cursor.live)
        inbox.clear()
        again = inbox.shot(lambda s: s.time_ms == END_MS)
        assert again.rows[1].values["kv:restarts"].value == 1.0


def test_a_recording_plays_to_its_end(tmp_path: Path) -> None:
    made = engines(tmp_path)
    with running(lambda: made, Options(interval_ms=100, play=True, speed=60)) as (_, inbox):
        shot = inbox.shot(lambda s: s.cursor.mode is Mode.PAUSED)
        assert shot.time_ms == END_MS
        moments = [m.shot.time_ms for m in inbox.messages if isinstance(m, Ticked)]
        assert moments == sorted(moments)
        assert moments[0] == START_MS
        assert shot.trail("kv:requests_running", POD).times[0] == START_MS


def test_a_live_endpoint_its_fault_and_its_return() -> None:
    with (
        Endpoint("") as endpoint,
        LivingPage(endpoint),
        running(lambda: attach([endpoint.target], interval_ms=100, timeout_s=0.5)) as (_, inbox),
    ):
        shot = inbox.shot(lambda s: bool(s.rows) and s.rows[0].value("kv:generation_tokens:rate") is not None)
        assert shot.cursor.mode is Mode.LIVE
        assert shot.rows[0].values["kv:pool_usage_ratio"].state is State.FRESH
        endpoint.behave("500")
        shot = inbox.shot(lambda s: bool(s.rows) and s.rows[0].stale)
        reading = shot.rows[0].values["kv:pool_usage_ratio"]
        assert reading.value is not None
        assert "500" in reading.why
        endpoint.behave("ok")
        inbox.clear()
        shot = inbox.shot(lambda s: bool(s.rows) and not s.rows[0].stale)
        assert shot.rows[0].values["kv:pool_usage_ratio"].state is State.FRESH


def test_a_live_endpoint_beside_an_old_recording_has_its_own_window(tmp_path: Path) -> None:
    old = engines(tmp_path)
    target = old.statuses[0].target
    with (
        Endpoint("") as endpoint,
        LivingPage(endpoint),
        running(lambda: attach([target, endpoint.target], interval_ms=100, timeout_s=0.5)) as (_, inbox),
    ):
        shot = inbox.shot(lambda s: any(r.value("kv:generation_tokens:rate") is not None for r in s.rows))
        assert shot.cursor.start_ms == START_MS, "every moment of the recording can be sought"
        assert shot.window_ms < 60_000, "the endpoint has not been watched for a minute"


def test_pause_holds_the_picture_while_data_flows() -> None:
    with (
        Endpoint("") as endpoint,
        LivingPage(endpoint),
        running(lambda: attach([endpoint.target], interval_ms=100)) as (monitor, inbox),
    ):
        inbox.shot(lambda s: bool(s.rows))
        monitor.move(Cursor.toggled)
        held = inbox.shot(lambda s: s.cursor.mode is Mode.PAUSED)
        later = inbox.shot(lambda s: s.cursor.end_ms >= held.cursor.end_ms + 500)
        assert later.time_ms == held.time_ms
        assert waiting(later) == waiting(held)
        monitor.move(Cursor.live)
        assert inbox.shot(lambda s: s.cursor.mode is Mode.LIVE and s.time_ms > later.time_ms)


def test_a_hanging_endpoint_neither_stops_the_ticks_nor_the_end() -> None:
    with Endpoint("") as endpoint:
        endpoint.behave("hang")
        with running(lambda: attach([endpoint.target], interval_ms=100, timeout_s=30)) as (monitor, inbox):
            shot = inbox.shot(lambda s: bool(s.sources) and s.sources[0].state == "timeout")
            assert "no answer yet" in shot.sources[0].error
            assert shot.rows == ()
            inbox.clear()
            inbox.shot(lambda s: True)
            monitor.stop()
            monitor.join(2.0)
            assert not monitor.is_alive()


def test_a_hang_ages_by_the_wall_clock() -> None:
    with (
        Endpoint("") as endpoint,
        LivingPage(endpoint),
        running(lambda: attach([endpoint.target], interval_ms=100, timeout_s=30)) as (_, inbox),
    ):
        inbox.shot(lambda s: bool(s.rows) and s.sources[0].ok)
        endpoint.behave("hang")
        shot = inbox.shot(lambda s: bool(s.rows) and s.rows[0].stale and (s.sources[0].silent_s or 0) > 1.5)
        ages = [reading.age_s or 0.0 for reading in shot.rows[0].values.values() if reading.value is not None]
        assert min(ages) > 1.0
        assert shot.time_ms > shot.now_ms - 500
        assert verdict.banner(shot, UNICODE)[0] not in ("banner_ok", "banner_bad")


def test_a_cold_start_on_a_hang_counts_from_the_first_question() -> None:
    with Endpoint("") as endpoint:
        endpoint.behave("hang")
        with running(lambda: attach([endpoint.target], interval_ms=100, timeout_s=0.5)) as (_, inbox):
            shot = inbox.shot(lambda s: bool(s.sources) and (s.sources[0].silent_s or 0) > 1.5)
            assert shot.sources[0].age_s is None
            assert "has not answered for 1 s" in verdict.banner(shot, UNICODE)[1]


def test_a_dead_engine_keeps_the_age_of_its_last_good_scrape(tmp_path: Path) -> None:
    """``up`` is 0 while its windowed numbers still have samples in their window."""
    with (
        Endpoint("") as endpoint,
        LivingPage(endpoint),
        running(lambda: attach([endpoint.target], interval_ms=100, timeout_s=0.5)) as (_, inbox),
    ):
        inbox.shot(lambda s: bool(s.rows) and s.rows[0].value("kv:generation_tokens:rate") is not None)
        endpoint.behave("500")
        shot = inbox.shot(lambda s: bool(s.rows) and s.rows[0].stale and (s.sources[0].age_s or 0) > 1.0)
        reading = shot.rows[0].values["kv:generation_tokens:rate"]
        assert reading.state is State.STALE
        assert reading.age_s is not None
        assert reading.age_s > 0.5


def test_silence_is_an_event_before_any_diagnosis_says_so() -> None:
    with (
        Endpoint("") as endpoint,
        LivingPage(endpoint),
        running(lambda: attach([endpoint.target], interval_ms=100, timeout_s=0.5)) as (_, inbox),
    ):
        shot = inbox.shot(lambda s: bool(s.rows) and s.diagnosis is not None)  # the next comes in ten seconds
        assert shot.events == ()
        endpoint.behave("500")
        shot = inbox.shot(lambda s: bool(s.events))
        assert shot.diagnosis is None or shot.diagnosis.events == ()
        (event,) = shot.events
        assert event.kind == "outage"
        assert dict(event.member) == {"instance": shot.sources[0].instances[0]}
        assert (shot.sources[0].age_s or 0.0) > PATIENT * 0.1, "one failed scrape is no outage"


def test_no_verdict_of_another_moment_is_shown(tmp_path: Path) -> None:
    made = engines(tmp_path)
    with running(lambda: made) as (monitor, inbox):
        inbox.shot(lambda s: s.diagnosis is not None)
        monitor.move(Cursor.home)
        shot = inbox.shot(lambda s: s.time_ms == START_MS)
        assert shot.diagnosis is None
        assert "collecting" in verdict.banner(shot, UNICODE)[1]
        monitor.move(lambda cursor: cursor.sought(START_MS + 60_000))
        told = inbox.shot(lambda s: s.time_ms == START_MS + 60_000 and s.diagnosis is not None)
        assert told.diagnosis is not None
        assert told.diagnosis.end_ms == START_MS + 60_000
        shots = [m.shot for m in inbox.messages if isinstance(m, Ticked) and m.shot.diagnosis]
        assert all(s.diagnosis.end_ms == s.time_ms for s in shots)


def test_where_a_number_comes_from_is_answered(tmp_path: Path) -> None:
    made = engines(tmp_path)
    with running(lambda: made) as (monitor, inbox):
        inbox.shot(lambda s: bool(s.rows))
        monitor.explain(("kv:requests_running", POD))
        told = inbox.shot(lambda s: s.origin is not None).origin
        assert told is not None
        assert (told.value, told.at_ms) == (3.0, END_MS)
        monitor.explain(None)
        inbox.clear()
        assert inbox.shot(lambda s: True).origin is None


def test_a_number_and_its_origin_are_of_one_moment(tmp_path: Path) -> None:
    """The cursor moves while the origin is shown: expression, window and value move with it."""
    rate = "kv:generation_tokens:rate"
    made = engines(tmp_path)
    with running(lambda: made) as (monitor, inbox):
        inbox.shot(lambda s: bool(s.rows))
        monitor.explain((rate, POD))
        inbox.shot(lambda s: s.origin is not None)
        monitor.move(Cursor.home)
        home = inbox.shot(lambda s: s.time_ms == START_MS)
        assert home.origin is not None
        assert home.origin.value is None, "one sample has no rate"
        monitor.move(lambda cursor: cursor.sought(START_MS + 10_000))
        inbox.shot(lambda s: s.time_ms == START_MS + 10_000)
        monitor.move(Cursor.live)
        inbox.shot(lambda s: s.time_ms == END_MS)
        asked = [m.shot for m in inbox.messages if isinstance(m, Ticked) and m.shot.origin is not None]
    assert {s.time_ms for s in asked} >= {START_MS, START_MS + 10_000, END_MS}
    for shot in asked:
        assert shot.origin is not None
        assert (shot.origin.at_ms, shot.origin.window) == (shot.time_ms, f"{shot.window_ms // 1000}s")
        row = next(row for row in shot.rows if row.key is POD)
        assert shot.origin.value == pytest.approx(row.value(rate))


def test_what_cannot_be_attached_is_told() -> None:
    def refuse() -> Attachment:
        raise ValueError("target nvml: not supported by this version of kvscope")

    with running(refuse) as (_, inbox):
        told = inbox.told(Failed)
        assert isinstance(told, Failed)
        assert told.says == "target nvml: not supported by this version of kvscope"


@pytest.mark.parametrize("speed", [1, 60])
def test_incremental_history_equals_one_that_was_asked_at_once(tmp_path: Path, speed: int) -> None:
    from tui.observer import Observer

    view = engines(tmp_path).view
    step = STEP_S * 1000
    stepped, at_once = (Observer(view, step, 60_000, 600_000) for _ in range(2))
    for at_ms in range(START_MS, END_MS + 1, step if speed == 1 else 6 * step):
        stepped.observe(at_ms, START_MS, {})
    stepped.observe(END_MS, START_MS, {})
    at_once.observe(END_MS, START_MS, {})
    one, other = stepped.trails(), at_once.trails()
    assert one.keys() == other.keys()
    for key in one:
        assert repr(one[key]) == repr(other[key])


def test_a_rate_is_right_from_the_first_moments(tmp_path: Path) -> None:
    """100 tokens in 5 s are 20 a second, whether a minute or ten seconds of data are there."""
    from tui.observer import Observer

    observer = Observer(engines(tmp_path).view, STEP_S * 1000, 60_000, 600_000)
    rows, _ = observer.observe(END_MS, START_MS, {})
    trail = observer.trails()["kv:generation_tokens:rate", POD]
    assert rows[0].value("kv:generation_tokens:rate") == pytest.approx(20.0)
    assert [value for value in trail.values if value == value] == pytest.approx([20.0] * 24)
    assert observer.observe(START_MS + 10_000, START_MS, {})[0][0].value("kv:generation_tokens:rate") == 20.0


@pytest.mark.parametrize("held_s", [0, 5, 10, 14, 15, 29, 59, 60, 300])
def test_the_window_is_never_longer_than_the_data(held_s: int) -> None:
    window = filled(held_s * 1000, 5000, 60_000)
    assert 10_000 <= window <= 60_000
    assert window <= max(held_s * 1000, 10_000)


def test_every_step_has_one_window() -> None:
    times = range(START_MS, START_MS + 90_001, 5000)
    runs = list(stretches(times, START_MS, 5000, 60_000))
    assert [step for _, run in runs for step in run] == list(times)
    assert [window for window, _ in runs] == sorted({window for window, _ in runs})
    assert runs[-1][0] == 60_000
