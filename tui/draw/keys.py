"""The bottom line: which keys do what here."""

from __future__ import annotations

from tui.cursor import Cursor, Mode
from tui.draw.canvas import Canvas, width_of


def hints(screen: str, cursor: Cursor) -> list[tuple[str, str, str]]:
    """Key, what it does, and the action it stands for; the most needed first."""
    going = {Mode.LIVE: "pause", Mode.PLAYING: "pause", Mode.PAUSED: "play" if cursor.recorded else "go on"}
    found = [("q", "quit", "app.quit"), ("?", "help", "app.help"), ("space", going[cursor.mode], "app.pause")]
    here = {
        "overview": [("enter", "explain", "app.enter"), ("s", "sort", "app.sort")],
        "findings": [("enter", "open", "app.enter")],
        "sources": [],
        "pool": [("p", "explain", "app.origin"), ("up/down", "next pool", "app.move(1)")],
    }[screen]
    found += here
    found += [("←→", "step", "app.step(-1)"), ("/", "seek", "app.seek"), ("[]", "speed", "app.faster(1)")]
    found += [("1-4", "screens", "app.next_screen"), ("home/end", "", "app.live"), ("t", "theme", "app.theme")]
    return found


def draw(canvas: Canvas, screen: str, cursor: Cursor, flash: str = "") -> None:
    """As many keys as fit; ``flash`` is a passing word of the app."""
    canvas.put(0, 0, " " * canvas.width, "bar")
    x = 1
    if flash:
        x = canvas.put(x, 0, flash, "key") + 2
    for key, text, action in hints(screen, cursor):
        size = width_of(key) + (1 + width_of(text) if text else 0)
        if x + size > canvas.width:
            break
        shown = {"←→": "<- ->"}.get(key, key) if canvas.glyphs.ascii else key
        canvas.hit(action, x, 0, size)
        x = canvas.put(x, 0, shown, "key")
        x = (canvas.put(x + 1, 0, text, "key_text") if text else x) + 2
