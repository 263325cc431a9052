"""Restarts, resets and gaps: what happened, beside what is wrong."""

from __future__ import annotations

from tui.draw.canvas import Canvas
from tui.draw.verdict import member_name
from tui.quantity import clock
from tui.snapshot import Snapshot

_SIGNS = {"restart": "↻", "reset": "↺", "gap": "∅", "outage": "✕"}
_ASCII = {"restart": "R", "reset": "r", "gap": "0", "outage": "x"}


def draw(canvas: Canvas, shot: Snapshot) -> None:
    """The newest first; one line holds as many as fit."""
    if canvas.height == 1:
        _line(canvas, shot)
        return
    inside = canvas.frame("Events")
    if not shot.events:
        inside.put(1, 0, "no restart, reset or gap", "muted")
    for y, event in enumerate(sorted(shot.events, key=lambda e: -e.time_ms)[: inside.height]):
        x = inside.put(1, y, clock(event.time_ms), "muted")
        x = inside.put(x + 1, y, _sign(canvas, event.kind), "warn")
        inside.put(x + 1, y, f"{event.kind} {member_name(event.member)}: {event.says}", "text")


def _line(canvas: Canvas, shot: Snapshot) -> None:
    if not shot.events:
        canvas.put(1, 0, "Events: no restart, reset or gap", "muted")
        return
    x = 1
    for event in sorted(shot.events, key=lambda e: -e.time_ms):
        text = f"{event.kind} {member_name(event.member)}: {event.says}"
        if x > 1 and x + 12 + len(text) > canvas.width:
            break
        x = canvas.put(x, 0, clock(event.time_ms), "muted") + 1
        x = canvas.put(x, 0, _sign(canvas, event.kind), "warn") + 1
        x = canvas.put(x, 0, text, "text") + 3


def _sign(canvas: Canvas, kind: str) -> str:
    return (_ASCII if canvas.glyphs.ascii else _SIGNS).get(kind, canvas.glyphs.bullet)
