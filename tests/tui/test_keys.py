"""Keys, on the real app with a fixed picture and a monitor that writes down what it is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from probes.labels import Labels
from tests.tui import pictures
from tests.tui.test_screens import shown
from tui.app import KvtopApp
from tui.cursor import Cursor, Mode
from tui.messages import Failed, Ticked
from tui.options import Options
from tui.provenance import Provenance, RawInput
from tui.snapshot import Snapshot, nothing_yet
from tui.trail import Key


class Recorded:
    """A monitor in which only the cursor lives."""

    def __init__(self, app: KvtopApp) -> None:
        self.app, self.asked, self.running = app, list[Key | None](), False
        self.cursor = pictures.incident().cursor

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def move(self, change: Callable[[Cursor], Cursor]) -> None:
        self.cursor = change(self.cursor)
        shot = replace(self.app.scene.shot, cursor=self.cursor, time_ms=self.cursor.at_ms)
        self.app.post_message(Ticked(shot))

    def explain(self, asked: Key | None) -> None:
        self.asked.append(asked)

    def show(self, screen: str) -> None:
        self.screen = screen


def app_on(shot: Snapshot) -> tuple[KvtopApp, list[Recorded]]:
    made: list[Recorded] = []

    def monitor(app: KvtopApp) -> Recorded:
        made.append(Recorded(app))
        return made[0]

    app = KvtopApp(monitor, Options())
    app.scene.shot = shot
    return app, made


async def test_screens_by_number_and_tab() -> None:
    app, monitors = app_on(pictures.incident())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        for key, words in (
            ("2", "EVIDENCE"),
            ("3", "SAMPLES"),
            ("1", "PREEMPT"),
            ("tab", "EVIDENCE"),
            ("tab", "SAMPLES"),
            ("tab", "asking for the pools"),
        ):
            await pilot.press(key)
            assert words in shown(app, "body")
        assert monitors[0].screen == "pool"
        await pilot.press("shift+tab", "shift+tab", "shift+tab")
        assert app.scene.look.screen == "overview"


async def test_pause_step_home_end_and_speed_move_the_cursor() -> None:
    app, made = app_on(pictures.incident())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("space")
        assert made[0].cursor.mode is Mode.PAUSED
        assert "paused" in shown(app, "top")
        assert "go on" in shown(app, "bottom")
        await pilot.press("left", "left")
        assert made[0].cursor.at_ms == pictures.NOW - 2000
        await pilot.press("home")
        assert made[0].cursor.at_ms == pictures.NOW - pictures.SPAN
        await pilot.press("right_square_bracket", "right_square_bracket", "left_square_bracket", "space")
        assert (made[0].cursor.mode, made[0].cursor.speed) == (Mode.PLAYING, 2)
        await pilot.press("end")
        assert made[0].cursor.mode is Mode.LIVE


async def test_seek_takes_the_keys_until_enter() -> None:
    app, made = app_on(pictures.incident())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("slash", *"10:02:15")
        assert "seek to 10:02:15" in shown(app, "bottom")
        assert app.scene.look.screen == "overview"  # 1 and 2 were typed, not obeyed
        await pilot.press("enter")
        assert made[0].cursor.at_ms == pictures.ONSET
        await pilot.press("slash", *"noon", "enter")
        assert "seek to noon" in shown(app, "bottom")
        assert "'noon' is no moment: HH:MM:SS" in shown(app, "bottom")
        await pilot.press("backspace")
        assert "seek to noo  HH:MM:SS or -5m" in shown(app, "bottom")
        await pilot.press("escape", "2")
        assert app.scene.look.screen == "findings"


async def test_the_enter_that_ends_a_seek_does_nothing_else() -> None:
    app, made = app_on(pictures.incident())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("slash", *"-1m", "enter")
        assert made[0].cursor.at_ms == pictures.NOW - 60_000
        assert (app.scene.over, made[0].asked) == ("", [])


async def test_a_seek_out_of_the_data_goes_to_its_end_and_says_so() -> None:
    app, made = app_on(pictures.incident())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("slash", *"10:30", "enter")
        assert made[0].cursor.at_ms == pictures.NOW
        assert "the data ends at 10:05:00" in shown(app, "bottom")
        await pilot.press("slash", *"-2h", "enter")
        assert made[0].cursor.at_ms == pictures.NOW - pictures.SPAN
        assert "the data begins at 10:00:00" in shown(app, "bottom")


async def test_there_is_nothing_to_seek_in_before_the_first_data() -> None:
    app, _ = app_on(nothing_yet(1000, 60_000))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("slash")
        assert app.scene.prompt is None
        assert "nothing to seek in yet" in shown(app, "bottom")


async def test_a_passing_word_outlives_a_tick_and_not_a_key() -> None:
    app, _ = app_on(pictures.incident())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("s")
        app.post_message(Ticked(app.scene.shot))
        await pilot.pause()
        assert "sorted by Pool in use" in shown(app, "bottom")
        await pilot.press("down")
        assert "sorted by" not in shown(app, "bottom")


async def test_down_reaches_the_targets_without_a_row_and_enter_shows_their_fault() -> None:
    app, _ = app_on(pictures.stale())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press(*["down"] * 5)
        assert app.scene.look.silent == "http://pod-9:8000/metrics"
        await pilot.press("enter")
        assert "no answer within 5 s" in shown(app, "body")
        await pilot.press("1", "up")
        assert (app.scene.look.silent, app.scene.look.entity.get("instance")) == ("", "pod-2:8000")


async def test_ctrl_c_leaves_with_130() -> None:
    app, _ = app_on(pictures.incident())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("ctrl+c")
        await pilot.pause()
    assert app.return_value == 130


async def test_enter_opens_the_finding_and_escape_closes_it() -> None:
    app, _ = app_on(replace(pictures.incident(), pages={"kv-capacity-exhausted": "# Meaning\n\nThe pool is *full*."}))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("2", "enter")
        assert "since 10:02:15" not in shown(app, "body")  # the list is gone, the card has the room
        await pilot.press(*["pagedown"] * 6)
        text = shown(app, "body")
        assert "RUNBOOK" in text
        assert "Meaning" in text
        await pilot.press("escape")
        assert "since 10:02:15" in shown(app, "body")
        await pilot.press("down")
        assert "cannot be decided" in shown(app, "body")


async def test_a_number_tells_where_it_comes_from() -> None:
    app, made = app_on(pictures.incident())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await pilot.press("down", "full_stop", "enter")
        assert made[0].asked[-1] is not None
        panel, entity = made[0].asked[-1]
        assert (panel, entity.get("instance")) == ("kv:requests_running", "pod-1:8000")
        assert "asking" in shown(app, "body")
        origin = Provenance(
            panel, entity, pictures.NOW, "60s", "max(kv:pool_tokens)", "max(vllm:x)", 434_176.0, 12.0,
            (RawInput('vllm:x{instance="pod-1:8000"}', 434_176.0, 0.4),),
        )  # fmt: skip
        app.post_message(Ticked(replace(app.scene.shot, origin=origin)))
        await pilot.pause()
        text = shown(app, "body")
        for words in ("exactly   434176.0", "max(vllm:x)", 'vllm:x{instance="pod-1:8000"}', "12 s old", "window 60s"):
            assert words in text
        await pilot.press("escape")
        assert "Where this number" not in shown(app, "body")
        assert len(made[0].asked) == 1, "asked once, not at every tick"
        app.post_message(Ticked(app.scene.shot))
        await pilot.pause()
        assert made[0].asked[-1] is None, "nobody looks any more"


async def test_an_answer_for_another_number_is_not_shown() -> None:
    app, _ = app_on(pictures.incident())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await pilot.press("p")
        other = Provenance("kv:restarts", Labels.of(), pictures.NOW, "60s", "other()")
        app.post_message(Ticked(replace(app.scene.shot, origin=other)))
        await pilot.pause()
        assert "other()" not in shown(app, "body")


async def test_sort_by_the_selected_number_and_back() -> None:
    app, _ = app_on(pictures.sixteen())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("s")
        assert shown(app, "body").index("pod-16:8000") < shown(app, "body").index("pod-15:8000")
        assert "sorted by Pool in use" in shown(app, "bottom")
        await pilot.press("s")
        assert "sorted by name" in shown(app, "bottom")


async def test_help_explains_every_number() -> None:
    app, _ = app_on(pictures.incident())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("question_mark")
        assert "quit at once" in shown(app, "body")
        seen = ""
        for _ in range(60):
            seen += shown(app, "body")
            await pilot.press("pagedown")
        assert "Share of looked-up prompt tokens found in the local prefix cache" in seen
        assert "kv:preemptions_total" in seen
        await pilot.press("question_mark")
        assert "Pool in use" in shown(app, "body")


async def test_themes_go_round() -> None:
    app, _ = app_on(pictures.incident())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        names = []
        for _ in range(4):
            await pilot.press("t")
            names.append(app.scene.flash)
        assert names[0] == "theme okabe-light"
        assert names[0] == names[3]


async def test_a_click_selects_an_engine_and_explains_a_tile() -> None:
    app, made = app_on(pictures.incident())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        lines = shown(app, "body").splitlines()
        y = next(i for i, line in enumerate(lines) if "pod-2:8000" in line)
        await pilot.click("#body", offset=(5, y))
        assert app.scene.look.entity.get("instance") == "pod-2:8000"
        await pilot.click("#body", offset=(25, 1))
        assert made[0].asked[-1] is not None
        assert made[0].asked[-1][0] == "kv:requests_waiting"


@pytest.mark.parametrize("before", [(), ("2", "enter"), ("slash", "1"), ("question_mark",), ("p",)])
async def test_q_quits_from_anywhere(before: tuple[str, ...]) -> None:
    app, made = app_on(pictures.incident())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press(*before, "q")
        await pilot.pause()
    assert app.return_value == 0
    assert not made[0].running


async def test_what_cannot_be_attached_is_said_after_the_screen_closed() -> None:
    app, _ = app_on(pictures.incident())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app.post_message(Failed("target x: not supported"))
        await pilot.pause()
    assert (app.return_value, app.says) == (2, "target x: not supported")


async def test_only_changed_lines_are_painted() -> None:
    from tui.widgets.pane import Pane

    app, _ = app_on(pictures.incident())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        pane = app.query_one("#body", Pane)
        before = [pane.render_line(y) for y in range(pane.size.height)]
        fleet = pictures.row("pod-2:8000", {**pictures.CALM, "kv:requests_running": 19})
        rows = tuple(fleet if one.name == "pod-2:8000" else one for one in app.scene.shot.rows)
        strips = list(pane._strips)
        app.post_message(Ticked(replace(app.scene.shot, rows=rows)))
        await pilot.pause()
        changed = [y for y, strip in enumerate(pane._strips) if strip is not strips[y]]
        assert len(changed) == 1
        assert "pod-2:8000" in pane.render_line(changed[0]).text
        assert len(before) == len(strips)
