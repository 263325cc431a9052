"""kvtop: the app. The monitor posts one snapshot a tick; the app keeps the latest and paints it."""

from __future__ import annotations

import asyncio
import os
import signal
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
from tui.draw.table import chosen_place, columns_shown, silent_targets, table_rows
from tui.look import Look, selected
from tui.messages import Failed, Ticked
from tui.options import Options
from tui.painting import LEAST, Scene
from tui.panels import BY_NAME
from tui.quantity import clock
from tui.snapshot import Snapshot, nothing_yet
from tui.themes import MONO, THEMES, Palette
from tui.widgets.pane import Pane

if TYPE_CHECKING:
    from textual.driver import Driver
    from textual.timer import Timer

    from tui.trail import Key

_LAST_S = 2.0  # a terminal that is gone may take our last words never
_FLASH_S = 3.0
_SETTLED_S = 0.05  # after a resize, until Textual has laid out anew
_SCREENS = ("overview", "findings", "sources", "pool")


class Monitored(Protocol):
    """What the app needs of a monitor; every call returns at once."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def move(self, change: Callable[[Cursor], Cursor]) -> None: ...
    def explain(self, asked: Key | None) -> None: ...
    def show(self, screen: str) -> None: ...


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
    # All with priority: they act in the order of the keys, before any later key is looked at.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", priority=True),
        Binding("ctrl+c", "interrupt", priority=True),
        Binding("ctrl+l", "redraw", priority=True),
        Binding("1", "show('overview')", priority=True),
        Binding("2", "show('findings')", priority=True),
        Binding("3", "show('sources')", priority=True),
        Binding("4", "show('pool')", priority=True),
        Binding("tab", "next_screen(1)", priority=True),
        Binding("shift+tab", "next_screen(-1)", priority=True),
        Binding("space", "pause", priority=True),
        Binding("left", "step(-1)", priority=True),
        Binding("right", "step(1)", priority=True),
        Binding("home", "home", priority=True),
        Binding("end", "live", priority=True),
        Binding("left_square_bracket", "faster(-1)", priority=True),
        Binding("right_square_bracket", "faster(1)", priority=True),
        Binding("slash", "seek", priority=True),
        Binding("up,k", "move(-1)", priority=True),
        Binding("down,j", "move(1)", priority=True),
        Binding("comma,shift+left", "column(-1)", priority=True),
        Binding("full_stop,shift+right", "column(1)", priority=True),
        Binding("pageup", "scroll(-10)", priority=True),
        Binding("pagedown", "scroll(10)", priority=True),
        Binding("enter", "enter", priority=True),
        Binding("p", "origin", priority=True),
        Binding("s", "sort", priority=True),
        Binding("t", "theme", priority=True),
        Binding("question_mark,f1", "help", priority=True),
        Binding("escape", "close", priority=True),
    ]

    def __init__(self, monitor: Callable[[KvtopApp], Monitored], options: Options) -> None:
        self._mono = bool(os.environ.get("NO_COLOR"))
        super().__init__(driver_class=_driver(), ansi_color=True if self._mono else None)
        self._palette: Palette = MONO if self._mono else _palette(options.theme)
        self._glyphs = ASCII if options.ascii else UNICODE
        window_ms = options.window_ms or max(60_000, 4 * options.interval_ms)
        self.scene = Scene(nothing_yet(options.interval_ms, window_ms, options.label, options.opening))
        self.says = ""
        self._asked: Key | None = None
        self._make_monitor = monitor
        self._monitor: Monitored = _Still()
        self._flash_timer: Timer | None = None
        self._painting = False
        self.signals: tuple[int, ...] = ()

    def compose(self) -> ComposeResult:
        for painter, name in (
            (self.scene.top, "top"),
            (self.scene.body, "body"),
            (self.scene.bottom, "bottom"),
            (self.scene.too_small, "small"),
        ):
            yield Pane(painter, self._palette, self._glyphs, name)

    def on_load(self) -> None:
        """Before the terminal is touched: whoever ends us must find it as it was."""
        for number in self.signals:
            asyncio.get_running_loop().add_signal_handler(number, self._ended_by, number)

    def _ended_by(self, number: int) -> None:
        """Leave as a shell expects it; where the terminal is gone and cannot be written to, leave all the same."""
        code = 128 + number
        last = threading.Timer(_LAST_S, os._exit, (code,))
        last.daemon = True
        last.start()
        self.exit(code)

    def on_mount(self) -> None:
        self.screen.styles.background = self._palette.background or "ansi_default"
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        """Start the monitor, after the first picture: its imports must not hold that up."""
        self._monitor = self._make_monitor(self)
        self._monitor.start()
        self._asked = None
        self._ask()

    def on_unmount(self) -> None:
        self._monitor.stop()

    def on_resize(self, event: events.Resize) -> None:
        small = event.size.width < LEAST[0] or event.size.height < LEAST[1]
        self.screen.set_class(small, "-small")

    def on_ticked(self, message: Ticked) -> None:
        self.scene.shot = message.shot
        self._ask()  # a row may have gone with its moment
        self._paint()

    def on_failed(self, message: Failed) -> None:
        self.says = message.says
        self.exit(2)

    def _paint(self, palette: Palette | None = None) -> None:
        with self.batch_update():
            for pane in self.query(Pane):
                if pane.display:
                    pane.paint(palette)

    def _paint_soon(self) -> None:
        """Paint once what several keys in a row have changed: after those that wait already."""
        if not self._painting:
            self._painting = True
            self.call_later(self._paint_late)

    def _paint_late(self) -> None:
        self._painting = False
        self._paint()

    def resized(self) -> None:
        """The terminal says that its size changed, though perhaps to what it was (from any callback of the loop)."""
        self.call_later(self.set_timer, _SETTLED_S, self.repaint)

    def repaint(self) -> None:
        """Write every cell again: the terminal may have lost some."""
        self.screen.refresh(layout=True)

    def _see(self, look: Look) -> None:
        self.scene.look = look
        self._paint_soon()

    # --- keys: screens and selection

    async def action_quit(self) -> None:
        self.exit(0)

    def action_interrupt(self) -> None:
        self.exit(128 + signal.SIGINT)

    def action_redraw(self) -> None:
        self.repaint()

    def action_show(self, screen: str) -> None:
        self.scene.over = ""
        self._monitor.show(screen)
        self._see(replace(self.scene.look, screen=screen, scroll=0, open=False))

    def action_next_screen(self, by: int = 1) -> None:
        self.action_show(_SCREENS[(_SCREENS.index(self.scene.look.screen) + by) % len(_SCREENS)])

    def action_move(self, by: int) -> None:
        """Up and down: within what lies on top, else within the screen's list."""
        look = self.scene.look
        if self.scene.over or (look.screen == "findings" and look.open):
            self.action_scroll(by)
        elif look.screen == "overview":
            self.action_select_row(chosen_place(self.scene.shot, look) + by)
        elif look.screen == "pool":
            from tui.draw.pool import chosen

            self.action_pick(chosen(self.scene.shot.pools or (), look) + by)
        else:
            self.action_pick((look.item if look.screen == "findings" else look.source) + by)

    def action_select_row(self, index: int) -> None:
        """A place in the table: the engines' rows, and under them the targets without one."""
        rows, silent = table_rows(self.scene.shot, self.scene.look), silent_targets(self.scene.shot)
        index = min(max(index, 0), len(rows) + len(silent) - 1)
        if 0 <= index < len(rows):
            self._see(replace(self.scene.look, entity=rows[index].key, silent=""))
        elif index >= 0:
            self._see(replace(self.scene.look, silent=silent[index - len(rows)].target))

    def action_pick(self, index: int) -> None:
        look, shot = self.scene.look, self.scene.shot
        if look.screen == "findings":
            from tui.draw.findings import entries

            last = len(entries(shot.diagnosis, self._glyphs)) - 1
            self._see(replace(look, item=min(max(index, 0), max(0, last)), scroll=0))
        elif look.screen == "sources":
            self._see(replace(look, source=min(max(index, 0), max(0, len(shot.sources) - 1)), scroll=0))
        elif look.screen == "pool" and shot.pools:
            pool = shot.pools[min(max(index, 0), len(shot.pools) - 1)]
            self._see(replace(look, entity=pool.entity, silent=""))

    def action_column(self, by: int) -> None:
        look = self.scene.look
        shown = columns_shown(self.query_one("#body", Pane).size.width, self.scene.shot)
        if shown:
            at = shown.index(look.panel) + by if look.panel in shown else 0
            self._see(replace(look, panel=shown[at % len(shown)]))
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
        elif look.screen == "overview" and look.silent:
            targets = [source.target for source in self.scene.shot.sources]
            if look.silent in targets:
                self.scene.look = replace(look, source=targets.index(look.silent))
                self.action_show("sources")
        elif look.screen == "overview":
            self.action_origin()
        elif look.screen == "findings":
            self._see(replace(look, open=not look.open, scroll=0))

    def action_explain(self, panel: str) -> None:
        self.scene.look = replace(self.scene.look, panel=panel)
        self.action_origin()

    def action_origin(self) -> None:
        if self.scene.look.screen in ("overview", "pool"):
            self.scene.over, self.scene.over_scroll = "origin", 0
            self._ask()
            self._paint()

    def _ask(self) -> None:
        """Have the monitor explain the number that is selected while its origin is shown; said once, not per tick."""
        key = (self.scene.look.panel, selected(self.scene.shot, self.scene.look).key)
        asked = key if self.scene.over == "origin" else None
        if asked != self._asked:
            self._asked = asked
            self._monitor.explain(asked)

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
        self._flash(f"theme {self._palette.name}")
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
        if not self.scene.shot.cursor.end_ms:
            self._flash("nothing to seek in yet")
            return
        self.scene.prompt = ""
        self._paint()

    async def on_event(self, event: events.Event) -> None:
        """The seek line takes the keys while it is open: no binding may see the key that closes it."""
        if isinstance(event, events.Key) and not event.is_forwarded:
            self._unflash()
            if self.scene.prompt is not None and event.key not in ("q", "ctrl+c"):
                self._typed(event)
                return
        await super().on_event(event)

    def _typed(self, event: events.Key) -> None:
        assert self.scene.prompt is not None
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
        return action in ("quit", "interrupt") or self.scene.prompt is None

    def _sought(self, text: str) -> None:
        """Go there; what is no moment leaves the line open, what lies outside the data goes to its nearer end."""
        from tui.seek import SeekError, moment_of

        cursor = self.scene.shot.cursor
        try:
            at_ms = moment_of(text, cursor)
        except SeekError as error:
            self._flash(str(error))
            return
        self.scene.prompt = None
        self._monitor.move(lambda cursor: cursor.sought(at_ms))
        if at_ms < cursor.start_ms:
            self._flash(f"the data begins at {clock(cursor.start_ms)}")
        elif at_ms > cursor.end_ms:
            self._flash(f"the data ends at {clock(cursor.end_ms)}")

    def _flash(self, text: str) -> None:
        """A passing word in the key line: until the next key, or for some seconds."""
        self._unflash()
        self.scene.flash = text
        self._flash_timer = self.set_timer(_FLASH_S, self._unflash)
        self._paint()

    def _unflash(self) -> None:
        if self._flash_timer is not None:
            self._flash_timer.stop()
            self._flash_timer = None
        if self.scene.flash:
            self.scene.flash = ""
            self._paint_soon()


def _palette(name: str) -> Palette:
    return next((theme for theme in THEMES if theme.name == name), THEMES[0])


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

    def explain(self, asked: Key | None) -> None:
        return

    def show(self, screen: str) -> None:
        return
