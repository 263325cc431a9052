"""What each screen says, as text and as pictures, at every size that it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from playbooks.verdict import Overall
from tests.tui import pictures
from tui.app import KvtopApp, picture
from tui.cursor import Cursor, Mode
from tui.draw import overview, verdict
from tui.draw.canvas import ASCII, UNICODE, Canvas, Glyphs
from tui.look import Look
from tui.options import Options
from tui.painting import LEAST, Scene
from tui.reading import State
from tui.snapshot import Snapshot, nothing_yet

SIZES = [(80, 24), (160, 48), (200, 60)]
KEYS = {"overview": (), "findings": ("2",), "sources": ("3",)}
Compare = Callable[..., bool]


def body(shot: Snapshot, size: tuple[int, int], look: Look | None = None, glyphs: Glyphs = UNICODE) -> str:
    """The screen below the verdict, as text."""
    canvas = Canvas(size[0], size[1] - 4, glyphs)
    Scene(shot, look or Look()).body(canvas)
    return canvas.text()


def top(shot: Snapshot, width: int = 80) -> list[str]:
    canvas = Canvas(width, verdict.HEIGHT)
    verdict.draw(canvas, shot, "overview")
    return canvas.text().splitlines()


@pytest.mark.parametrize("screen", list(KEYS))
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_incident(snap_compare: Compare, screen: str, size: tuple[int, int]) -> None:
    assert snap_compare(picture(pictures.incident()), terminal_size=size, press=KEYS[screen])


@pytest.mark.parametrize("made", [pictures.healthy, pictures.sixteen, pictures.stale, pictures.nothing])
def test_states(snap_compare: Compare, made: Callable[[], Snapshot]) -> None:
    assert snap_compare(picture(made()), terminal_size=(80, 24))


def test_too_small(snap_compare: Compare) -> None:
    assert snap_compare(picture(pictures.incident()), terminal_size=(60, 15))


def test_no_colour(snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(picture(pictures.incident()), terminal_size=(80, 24))


@pytest.mark.parametrize("theme", ["okabe-light", "high-contrast"])
def test_themes(snap_compare: Compare, theme: str) -> None:
    assert snap_compare(picture(pictures.incident(), Options(theme=theme)), terminal_size=(80, 24))


def test_the_verdict_is_one_line_at_80_columns() -> None:
    tabs, banner, because = top(pictures.incident())
    assert "1 finding: kv-capacity-exhausted on pod-1:8000 since 10:02:15" in banner
    assert because.strip().startswith("likely: the pool is 99.4 % in use")
    assert "Findings ▲1" in tabs
    assert "live 10:05:00" in tabs


def test_healthy_says_how_much_it_does_not_know() -> None:
    assert "✓ healthy; 2 causes could not be decided" in top(pictures.healthy())[1]


def test_no_data_is_never_healthy() -> None:
    assert "cannot tell" in top(pictures.nothing())[1]
    waiting = top(nothing_yet(1000, 60_000))
    assert "connecting" in waiting[1]
    assert "no data yet" in waiting[0]
    assert not any("healthy" in line for line in [*top(pictures.nothing()), *waiting])


def silent(shot: Snapshot, state: str, silent_s: float, age_s: float | None) -> Snapshot:
    """The shot with a second target that gives nothing."""
    other = replace(pictures.source("pod-7:8000", state, "x", age_s), silent_s=silent_s)
    return replace(shot, sources=(*shot.sources, other))


def test_an_engine_that_fell_silent_takes_healthy_away() -> None:
    banner = verdict.banner(silent(pictures.healthy(), "timeout", 18.0, 18.0), UNICODE)
    assert banner == ("banner_unknown", "? cannot tell: pod-7:8000 has not answered for 18 s")


def test_healthy_is_said_of_the_targets_that_answer_only() -> None:
    style, text = verdict.banner(silent(pictures.healthy(), "refused", 60.0, None), UNICODE)
    assert "healthy on 1 of 2 targets" in text
    assert style != "banner_ok"


def test_nothing_is_live_when_no_source_is() -> None:
    shot = replace(pictures.healthy(), sources=())
    tabs, banner, _ = top(silent(shot, "timeout", 18.0, 18.0))
    assert "● live" not in tabs
    assert "silent 18 s" in tabs
    assert "cannot tell: pod-7:8000 has not answered for 18 s" in banner


def test_a_verdict_that_lags_says_for_when_it_is() -> None:
    shot = pictures.healthy()
    assert "(at" not in top(shot)[1]
    late = replace(shot, time_ms=pictures.NOW + 60_000)
    assert "(at 10:05:00)" in top(late)[1]


def test_pages_without_an_engine_are_told_so() -> None:
    foreign = replace(pictures.source("pod-1:9400"), present=("kv:gpu_memory_used_bytes",))
    shot = replace(pictures.nothing(), diagnosis=None, sources=(foreign,))
    assert "no engine on these pages" in top(shot)[1]


def test_a_file_being_read_is_told_so() -> None:
    assert "reading made.om" in top(nothing_yet(1000, 60_000, opening="reading made.om…"))[1]


def test_a_tile_without_a_number_has_no_scale() -> None:
    text = body(pictures.healthy(), (80, 24))
    assert "unsupported" in text
    assert "max 1 B/s" not in text
    assert "━" not in body(pictures.nothing(), (80, 24)).split("ENGINE")[0]


def test_a_stale_number_of_unknown_age_claims_none() -> None:
    old = pictures.row("pod-1:8000", pictures.CALM, State.STALE)
    values = {name: replace(reading, age_s=None) for name, reading in old.values.items()}
    text = body(pictures.shot_of([replace(old, values=values)]), (80, 24))
    assert "0 s" not in text
    assert "◌ stale" in text


def test_states_and_names_of_sources_are_whole_at_80_columns() -> None:
    shot = pictures.stale()
    odd = pictures.source("pod-3:8000", "not-exposition", "HTML", None)
    text = body(replace(shot, sources=(odd,)), (80, 24), Look(screen="sources"))
    assert "pod-3:8000" in text.split("not-exposition")[0].splitlines()[-1]


def test_the_smallest_terminal_still_tells_the_way_out() -> None:
    for width in (10, 20, 30, 57):
        canvas = Canvas(width, 5)
        Scene(pictures.incident()).too_small(canvas)
        assert "q quits" in canvas.text()


def test_an_unexplained_symptom_is_named() -> None:
    from playbooks.verdict import Unexplained

    odd = Unexplained("latency", {"instance": "pod-2:8000"}, "x", 3.0, "TTFT p99 is 3 times its earlier self")
    shot = replace(pictures.healthy(), diagnosis=pictures.diagnosis(Overall.UNKNOWN, unexplained=(odd,)))
    assert "cannot tell: TTFT p99 is 3 times its earlier self on pod-2:8000" in top(shot, 120)[1]


@pytest.mark.parametrize(
    ("cursor", "words"),
    [
        (Cursor(Mode.PAUSED, 60_000, 0, 90_000), "paused 00:01:00 −30 s"),
        (Cursor(Mode.PLAYING, 45_000, 0, 90_000, 10, recorded=True), "x10 00:00:45 50.0 %"),
        (Cursor(Mode.PAUSED, 90_000, 0, 90_000, recorded=True), "end 00:01:30"),
    ],
)
def test_the_place_in_time_is_told(cursor: Cursor, words: str) -> None:
    assert words in top(replace(pictures.healthy(), cursor=cursor))[0]


def test_everything_essential_fits_80x24() -> None:
    text = body(pictures.incident(), (80, 24))
    for word in ("Pool in use", "Waiting", "Prefix hits", "TTFT p99", "Preemptions", "ITL p99", "pod-3:8000", "fresh"):
        assert word in text
    assert "99.4 %" in text
    assert "gap pod-2:8000: no sample for 12 s" in text


def test_a_stale_engine_shows_its_age_and_its_fault_and_does_not_count() -> None:
    text = body(pictures.stale(), (160, 48))
    assert "stale 42 s" in text
    assert "timeout: no answer within 5 s" in text
    assert "1 silent" in text
    assert "51.2 %" in next(line for line in text.splitlines() if "fleet (2)" in line)
    sources = body(pictures.stale(), (160, 48), Look(screen="sources", source=1))
    assert "connection refused: nothing listens on pod-2:8000" in sources


def test_a_missing_number_is_a_dash_with_its_state() -> None:
    text = body(pictures.healthy(), (80, 24), Look(entity=pictures.entity("pod-1:8000")))
    assert "– unsupported" in body(pictures.healthy(), (160, 48))
    assert "0.0 %" not in text


def test_sixteen_engines_scroll_with_the_selection() -> None:
    shot = pictures.sixteen()
    assert "pod-16:8000" not in body(shot, (80, 24))
    assert "fleet (16)" in body(shot, (80, 24))
    last = body(shot, (80, 24), Look(entity=pictures.entity("pod-16:8000")))
    assert "▸ pod-16:8000" in last
    assert "fleet (16)" in last
    assert "0 ↓" in last


def test_the_worst_comes_first_when_sorted() -> None:
    text = body(pictures.sixteen(), (80, 24), Look(sort="kv:pool_usage_ratio"))
    rows = [line.split()[0] for line in text.splitlines() if line.strip().startswith("pod-")]
    assert rows[:3] == ["pod-16:8000", "pod-15:8000", "pod-14:8000"]


@pytest.mark.parametrize("screen", list(KEYS))
def test_ascii_is_ascii(screen: str) -> None:
    for made in (pictures.incident, pictures.stale, pictures.nothing):
        assert body(made(), (160, 48), Look(screen=screen), ASCII).isascii()
    canvas = Canvas(100, 40, ASCII)
    Scene(pictures.stale(), Look(screen=screen), over="origin").body(canvas)
    assert canvas.text().isascii()


@pytest.mark.parametrize("screen", list(KEYS))
def test_any_size_draws(screen: str) -> None:
    shots = [pictures.incident(), pictures.sixteen(), pictures.nothing(), nothing_yet(1000, 60_000)]
    for width in (0, 1, 7, 40, 80, 111, 140, 260):
        for height in (0, 1, 3, 10, 20, 44, 90):
            for shot in shots:
                Scene(shot, Look(screen=screen)).body(Canvas(width, height))
                Scene(shot, Look(screen=screen), over="help").body(Canvas(width, height))


def test_the_open_card_tells_all() -> None:
    shot = pictures.incident()
    text = body(shot, (120, 100), Look(screen="findings", open=True))
    for words in (
        "likely: The KV pool is full",
        "0.994 > 0.97",
        "threshold: physical: a pool without a free block",
        "avg_over_time(kv:pool_usage_ratio[1m])",
        "traffic-surge: the arrival rate is what it was",
        "requests delayed  47 requests",
        "Give the pool more memory",
        "kvtop diagnose pod-1:8000 --for 2m",
        "read-only",
    ):
        assert words in text


def test_an_undecided_cause_says_what_is_missing() -> None:
    text = body(pictures.healthy(), (160, 48), Look(screen="findings"))
    assert "kv:request_prompt_tokens" in text
    assert "relabel rule" in text


def test_the_onset_is_marked_on_the_charts() -> None:
    assert "↑" in body(pictures.incident(), (160, 48))
    assert "↑" not in body(pictures.healthy(), (160, 48))


async def test_too_small_says_what_it_needs() -> None:
    app = picture(pictures.incident())
    async with app.run_test(size=(70, 20)) as pilot:
        assert "-small" in app.screen.classes
        assert "kvtop needs 80x24, this is 70x20" in shown(app, "small")
        await pilot.resize_terminal(*LEAST)
        await pilot.pause()
        assert "-small" not in app.screen.classes
        assert "Pool in use" in shown(app, "body")


def shown(app: KvtopApp, pane: str) -> str:
    """What a pane has on screen, as text."""
    from tui.widgets.pane import Pane

    found: Any = app.query_one(f"#{pane}", Pane)
    return "\n".join(found.render_line(y).text for y in range(found.size.height))


def test_overview_never_leaves_the_canvas() -> None:
    canvas = Canvas(80, 20)
    overview.draw(canvas, pictures.incident(), Look())
    assert all(0 <= hit.x < 80 and 0 <= hit.y < 20 for hit in canvas.hits)


def test_an_alarm_is_never_cut_off() -> None:
    numbers = {**pictures.CALM, "kv:transfer_expired:rate": 2.3}
    shot = pictures.shot_of([pictures.row(f"pod-{i}:8000", numbers) for i in range(1, 9)])
    text = body(shot, (80, 24))
    assert "expired 18.4/s" in text
    assert "Transfer faults" not in body(pictures.fleet_of(8), (80, 24))


@pytest.mark.parametrize("width", [40, 60, 106])
def test_a_long_expression_is_not_broken_within_a_name(width: int) -> None:
    from tui.draw.prose import code

    expr = 'sum(increase(kv:transfer_failures_total{instance="pod-1:8000"}[1m]))/sum(increase(kv:requests_total[1m]))'
    lines = ["".join(text for text, _ in line) for line in code(expr, width)]
    assert max(map(len, lines)) <= width
    assert "".join(line.strip() for line in lines) == expr
    for name in ("kv:transfer_failures_total", 'instance="pod-1:8000"', "kv:requests_total"):
        assert any(name in line for line in lines)


def test_a_long_name_is_broken_between_its_words() -> None:
    from tui.draw.prose import wrapped

    lines = ["".join(text for text, _ in line) for line in wrapped("pod-3:8000 has no kv:transfer_failures_total", 24)]
    assert lines == ["pod-3:8000 has no kv:", "transfer_failures_total"]
    assert ["".join(text for text, _ in line) for line in wrapped("x" * 20, 8)] == ["x" * 8, "x" * 8, "x" * 4]
