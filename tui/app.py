"""kvtop: the app. The monitor posts one snapshot a tick; the app keeps the latest and paints it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Protocol

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType

from tui.cursor import Cursor
from tui.draw.canvas import ASCII, UNICODE
from tui.draw.table import columns_shown, table_rows
from tui.look import Look, selected
from tui.messages import Explained, Failed, Ticked
from tui.options import Options
from tui.painting import LEAST, Scene
from tui.panels import BY_NAME
from tui.snapshot import Snapshot, nothing_yet
from tui.themes import MONO, THEMES, Palette
from tui.widgets.pane import Pane

if TYPE_CHECKING:
    from textual.driver import Driver

    from probes.attach import Attachment
    from probes.labels import Labels

_SCREENS = ("overview", "findings", "sources")


class Monitored(Protocol):
    """What the app needs of a monitor; every call returns at once."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def move(self, change: Callable[[Cursor], Cursor]) -> None: ...
    def explain(self, panel: str, entity: Labels, at_ms: int) -> None: ...


class KvtopApp(App[int]):
    """Keys change the look or move the cursor; a tick brings a snapshot; both end in `_paint`."""

    TITLE = "kvtop"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; overflow: hidden; }
    #top { height: 3; } #bottom { height: 1; } #small { display: none; }
    Screen.-small #top, Screen.-small #body, Screen.-small #bottom { display: none; }
    Screen.-small #small { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", priority=True),
        Binding("ctrl+c", "quit", priority=True),
        Binding("1", "show('overview')"),
        Binding("2", "show('findings')"),
        Binding("3", "show('sources')"),
        Binding("tab", "next_screen(1)", priority=True),
        Binding("shift+tab", "next_screen(-1)", priority=True),
        Binding("space", "pause"),
        Binding("left", "step(-1)"),
        Binding("right", "step(1)"),
        Binding("home", "home"),
        Binding("end", "live"),
        Binding("left_square_bracket", "faster(-1)"),
        Binding("right_square_bracket", "faster(1)"),
        Binding("slash", "seek"),
        Binding("up,k", "move(-1)"),
        Binding("down,j", "move(1)"),
        Binding("comma,shift+left", "column(-1)"),
        Binding("full_stop,shift+right", "column(1)"),
        Binding("pageup", "scroll(-10)"),
        Binding("pagedown", "scroll(10)"),
        Binding("enter", "enter"),
        Binding("p", "origin"),
        Binding("s", "sort"),
        Binding("t", "theme"),
        Binding("question_mark,f1", "help"),
        Binding("escape", "close"),
    ]

    def __init__(self, monitor: Callable[[KvtopApp], Monitored], options: Options) -> None:
        self._mono = "NO_COLOR" in os.environ
        super().__init__(driver_class=_driver(), ansi_color=True if self._mono else None)
        self._palette: Palette = MONO if self._mono else _palette(options.theme)
        self._glyphs = ASCII if options.ascii else UNICODE
        window_ms = options.window_ms or max(60_000, 4 * options.interval_ms)
        self.scene = Scene(nothing_yet(options.interval_ms, window_ms, options.label))
        self.says = ""
        self._make_monitor = monitor
        self._monitor: Monitored = _Still()
        self._flash_timer = 0

    def compose(self) -> ComposeResult:
        for painter, name in (
            (self.scene.top, "top"),
            (self.scene.body, "body"),
            (self.scene.bottom, "bottom"),
            (self.scene.too_small, "small"),
        ):
            yield Pane(painter, self._palette, self._glyphs, name)

    def on_mount(self) -> None:
        self.screen.styles.background = self._palette.background or "ansi_default"
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        """Start the monitor, after the first picture: its imports must not hold that up."""
        self._monitor = self._make_monitor(self)
        self._monitor.start()

    def on_unmount(self) -> None:
        self._monitor.stop()

    def on_resize(self, event: events.Resize) -> None:
        small = event.size.width < LEAST[0] or event.size.height < LEAST[1]
        self.screen.set_class(small, "-small")

    def on_ticked(self, message: Ticked) -> None:
        self.scene.shot = message.shot
        self.scene.flash = ""
        self._paint()

    def on_explained(self, message: Explained) -> None:
        self.scene.origin = message.origin
        self._paint()

    def on_failed(self, message: Failed) -> None:
        self.says = message.says
        self.exit(2)

    def _paint(self, palette: Palette | None = None) -> None:
        with self.batch_update():
            for pane in self.query(Pane):
                if pane.display:
                    pane.paint(palette)

    def _see(self, look: Look) -> None:
        self.scene.look = look
        self._paint()

    # --- keys: screens and selection

    async def action_quit(self) -> None:
        self.exit(0)

    def action_show(self, screen: str) -> None:
        self.scene.over = ""
        self._see(replace(self.scene.look, screen=screen, scroll=0, open=False))

    def action_next_screen(self, by: int = 1) -> None:
        self.action_show(_SCREENS[(_SCREENS.index(self.scene.look.screen) + by) % len(_SCREENS)])

    def action_move(self, by: int) -> None:
        """Up and down: within what lies on top, else within the screen's list."""
        look = self.scene.look
        if self.scene.over or (look.screen == "findings" and look.open):
            self.action_scroll(by)
        elif look.screen == "overview":
            rows = table_rows(self.scene.shot, look)
            at = next((i for i, row in enumerate(rows) if row.key is look.entity), 0)
            self.action_select_row(at + by)
        else:
            self.action_pick((look.item if look.screen == "findings" else look.source) + by)

    def action_select_row(self, index: int) -> None:
        rows = table_rows(self.scene.shot, self.scene.look)
        if rows:
            self._see(replace(self.scene.look, entity=rows[min(max(index, 0), len(rows) - 1)].key))

    def action_pick(self, index: int) -> None:
        look, shot = self.scene.look, self.scene.shot
        if look.screen == "findings":
            from tui.draw.findings import entries

            last = len(entries(shot.diagnosis, self._glyphs)) - 1
            self._see(replace(look, item=min(max(index, 0), max(0, last)), scroll=0))
        elif look.screen == "sources":
            self._see(replace(look, source=min(max(index, 0), max(0, len(shot.sources) - 1)), scroll=0))

    def action_column(self, by: int) -> None:
        look = self.scene.look
        shown = columns_shown(self.query_one("#body", Pane).size.width, self.scene.shot)
        if shown:
            at = shown.index(look.panel) + by if look.panel in shown else 0
            self._see(replace(look, panel=shown[at % len(shown)]))
            if self.scene.over == "origin":
                self._ask()

    def action_scroll(self, by: int) -> None:
        if self.scene.over:
            self.scene.over_scroll = max(0, self.scene.over_scroll + by)
            self._paint()
        else:
            self._see(replace(self.scene.look, scroll=max(0, self.scene.look.scroll + by)))

    def action_sort(self) -> None:
        look = self.scene.look
        self.action_sort_by("" if look.sort == look.panel else look.panel)

    def action_sort_by(self, panel: str) -> None:
        look = replace(self.scene.look, sort=panel, panel=panel or self.scene.look.panel)
        self._flash(f"sorted by {BY_NAME[panel].title}" if panel else "sorted by name")
        self._see(look)

    # --- keys: drill down

    def action_enter(self) -> None:
        look = self.scene.look
        if self.scene.over:
            self.action_close()
        elif look.screen == "overview":
            self.action_origin()
        elif look.screen == "findings":
            self._see(replace(look, open=not look.open, scroll=0))

    def action_explain(self, panel: str) -> None:
        self.scene.look = replace(self.scene.look, panel=panel)
        self.action_origin()

    def action_origin(self) -> None:
        if self.scene.look.screen == "overview":
            self.scene.over, self.scene.over_scroll = "origin", 0
            self._ask()
            self._paint()

    def _ask(self) -> None:
        row = selected(self.scene.shot, self.scene.look)
        self._monitor.explain(self.scene.look.panel, row.key, self.scene.shot.time_ms)

    def action_help(self) -> None:
        self.scene.over, self.scene.over_scroll = ("" if self.scene.over == "help" else "help"), 0
        self._paint()

    def action_close(self) -> None:
        if self.scene.over:
            self.scene.over = ""
        else:
            self.scene.look = replace(self.scene.look, open=False, scroll=0)
        self._paint()

    def action_theme(self) -> None:
        if self._mono:
            self._flash("NO_COLOR is set: one theme, without colour")
            return
        self._palette = THEMES[(THEMES.index(self._palette) + 1) % len(THEMES)]
        self.screen.styles.background = self._palette.background
        self.scene.flash = f"theme {self._palette.name}"
        self._paint(self._palette)

    # --- keys: time

    def action_pause(self) -> None:
        self._monitor.move(Cursor.toggled)

    def action_step(self, by: int) -> None:
        step_ms = by * self.scene.shot.interval_ms
        self._monitor.move(lambda cursor: cursor.stepped(step_ms))

    def action_home(self) -> None:
        self._monitor.move(Cursor.home)

    def action_live(self) -> None:
        self._monitor.move(Cursor.live)

    def action_faster(self, by: int) -> None:
        self._monitor.move(lambda cursor: cursor.faster(by))
        self._flash(f"speed x{self.scene.shot.cursor.faster(by).speed}")

    def action_seek(self) -> None:
        self.scene.prompt = ""
        self._paint()

    def on_key(self, event: events.Key) -> None:
        """The seek line takes the keys while it is open (`check_action` holds the bindings back)."""
        if self.scene.prompt is None:
            return
        event.stop()
        if event.key == "escape":
            self.scene.prompt = None
        elif event.key == "enter":
            self._sought(self.scene.prompt)
        elif event.key == "backspace":
            self.scene.prompt = self.scene.prompt[:-1]
        elif event.is_printable and event.character and len(self.scene.prompt) < 24:
            self.scene.prompt += event.character
        self._paint()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action == "quit" or self.scene.prompt is None

    def _sought(self, text: str) -> None:
        from tui.seek import SeekError, moment_of

        self.scene.prompt = None
        try:
            at_ms = moment_of(text, self.scene.shot.cursor)
        except SeekError as error:
            self._flash(str(error))
            return
        self._monitor.move(lambda cursor: cursor.sought(at_ms))

    def _flash(self, text: str) -> None:
        """A passing word in the key line; the next tick takes it away."""
        self.scene.flash = text
        self._paint()


def _palette(name: str) -> Palette:
    return next((theme for theme in THEMES if theme.name == name), THEMES[0])


def run(attach: Callable[[], Attachment], options: Options) -> int:
    """Open the screen on what ``attach`` attaches to (called off the screen's thread); returns the exit code.

    Raises ``TargetError`` for a target that cannot be meant, after the screen is closed again.
    """

    def monitor(made: KvtopApp) -> Monitored:
        from tui.monitor import Monitor

        return Monitor(attach, made.post_message, options)

    app = KvtopApp(monitor, options)
    # The diagnosis is Python, in another thread: it must hand over quickly when a key comes.
    sys.setswitchinterval(0.001)
    code = app.run() or 0
    if app.says:
        print(f"kvtop: {app.says}", file=sys.stderr)
    _leave(code)
    return code


def _leave(code: int) -> None:
    """Leave at once, where Python would wait for a thread: one that asks a name server that hangs, for example."""
    if threading.active_count() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _driver() -> type[Driver] | None:
    """Ours where terminals are POSIX; Textual's own choice elsewhere, and where a test or a web server chose."""
    if sys.platform == "win32" or os.environ.get("TEXTUAL_DRIVER"):
        return None
    from tui.driver import QuickDriver

    return QuickDriver


def picture(shot: Snapshot, options: Options | None = None) -> KvtopApp:
    """The app on one fixed snapshot, without a monitor: for screenshots and tests."""
    app = KvtopApp(lambda made: _Still(), options or Options())
    app.scene.shot = shot
    return app


class _Still:
    """A monitor that does nothing."""

    def start(self) -> None:
        return

    def stop(self) -> None:
        return

    def move(self, change: Callable[[Cursor], Cursor]) -> None:
        return

    def explain(self, panel: str, entity: Labels, at_ms: int) -> None:
        return
