"""Popups: help, and where a number comes from. Text over the screen, scrolled."""

from __future__ import annotations

from collections.abc import Iterator

from tui.draw.canvas import Canvas, Glyphs
from tui.draw.findings import paint
from tui.draw.prose import Line, code, wrapped
from tui.draw.tiles import style_of
from tui.panels import BY_NAME, PANELS
from tui.provenance import Provenance
from tui.quantity import age, clock, text_of
from tui.reading import EntityReading
from tui.vocabulary import vocabulary

_MOST_INPUTS = 12

_KEYS = (
    ("q", "quit at once"),
    ("1 2 3 4, tab", "screens: Overview, Findings, Sources, Pool"),
    ("space", "pause and go on; data keeps flowing meanwhile"),
    ("left right", "back and forth in time, one step; paused there"),
    ("[ ]", "slower, faster"),
    ("home end", "first sample; newest sample (live again)"),
    ("/", "seek: 10:02:15, or -5m for five minutes before the end"),
    ("up down", "select an engine, a finding, a source"),
    (", .", "select a number (column) of the engine"),
    ("enter", "explain: a number's origin, a finding's whole story"),
    ("p", "origin of the selected number"),
    ("s", "sort the engines by the selected number, or by name"),
    ("t", "theme: dark, light, high contrast"),
    ("pgup pgdn", "scroll"),
    ("esc", "close"),
    ("ctrl+l", "paint all anew"),
)
_STATES = (
    ("fresh", "the newest scrape has it"),
    ("stale", "the source does not answer: its last value, with its age"),
    ("gap", "the family is there, but there is no value now"),
    ("reset", "counters began again at 0 within the window (a restart); the rate allows for it"),
    ("unsupported", "this source has never shown the family"),
    ("no-permission", "the source refuses us"),
    ("not-yet-seen", "needs more samples first, or a recording that is not cut off before it"),
)


def help_lines(width: int, glyphs: Glyphs) -> list[Line]:
    """Keys, states, every number on the screen and every canonical name, in words."""
    lines: list[Line] = [[("KEYS", "head")]]
    for key, text in _KEYS:
        lines += _pair(key, text, 12, width, "key")
    lines += [[], [("STATES: missing is never 0", "head")]]
    for state, text in _STATES:
        lines += _pair(state, text, 14, width, "strong")
    lines += [[], [("NUMBERS ON THE SCREEN", "head")]]
    for panel in PANELS:
        lines.append([(panel.title, "strong"), (f"  {panel.name}", "muted")])
        lines += wrapped(panel.meaning, width, first="  ")
        lines += code(panel.expr, width, "    ")
    lines += [[], [("CANONICAL SIGNALS", "head")]]
    for term in vocabulary().values():
        lines.append([(term.name, "code"), (f"  {term.kind}, {term.unit}", "muted")])
        lines += wrapped(term.meaning, width, first="  ")
    return lines


def _pair(head: str, text: str, size: int, width: int, style: str) -> Iterator[Line]:
    for index, line in enumerate(wrapped(text, width - size - 1)):
        yield [(f"{head:<{size}} " if index == 0 else " " * (size + 1), style), *line]


def provenance_lines(origin: Provenance | None, row: EntityReading, panel_name: str, width: int) -> list[Line]:
    """The number, its state, and all that it is made of; before the answer comes, what is known already."""
    panel = BY_NAME[panel_name]
    reading = row.values.get(panel_name)
    lines: list[Line] = [[(panel.title, "strong"), (f"  {panel.name}", "muted")]]
    lines += wrapped(panel.meaning, width)
    lines.append([])
    who = row.name if row.labels else "all engines together"
    lines.append([("of        ", "muted"), (who, "strong")])
    if reading is not None:
        text = text_of(reading.value, panel.unit)
        lines.append([("value     ", "muted"), (text, style_of(panel, reading)), (f"  {reading.state}", "muted")])
        if reading.why:
            lines += [[("          ", "muted"), *line] for line in wrapped(reading.why, width - 10)]
    if origin is None:
        return [*lines, [("", "muted"), ("asking…", "muted")]]
    if origin.trouble:
        return [*lines, *wrapped(origin.trouble, width, "warn")]
    return lines + list(_origin(origin, width))


def _origin(origin: Provenance, width: int) -> Iterator[Line]:
    if origin.value is not None:
        yield [("exactly   ", "muted"), (repr(origin.value), "value")]
    yield [("at        ", "muted"), (f"{clock(origin.at_ms, date=True)} UTC, window {origin.window}", "text")]
    if origin.oldest_age_s is not None:
        yield [("oldest    ", "muted"), (f"its oldest input is {age(origin.oldest_age_s)} old", "text")]
    yield []
    yield [("EXPRESSION", "head")]
    yield from code(origin.expr, width)
    if origin.expanded:
        yield []
        yield [("IN THE ENGINE'S OWN NAMES", "head")]
        yield from code(origin.expanded, width)
    yield []
    yield [(f"RAW SERIES ({len(origin.inputs)})", "head")]
    for item in origin.inputs[:_MOST_INPUTS]:
        value = "–" if item.value is None else repr(item.value)
        when = "" if item.age_s is None else f"  {age(item.age_s)} old"
        yield from code(item.series, width)
        yield [("    ", "text"), (value, "value"), (when, "muted")]
    if len(origin.inputs) > _MOST_INPUTS:
        yield [(f"  and {len(origin.inputs) - _MOST_INPUTS} more", "muted")]


def draw(canvas: Canvas, title: str, lines: list[Line], scroll: int) -> None:
    """A framed box in the middle, as large as its text asks for and the canvas allows."""
    width = size(canvas.width)
    height = min(canvas.height, len(lines) + 2)
    box = canvas.area((canvas.width - width) // 2, (canvas.height - height) // 2, width, height)
    for y in range(box.height):
        box.put(0, y, " " * width, "text")
    box.hit("app.close", 0, 0, width, 1)
    paint(box.frame(title, "data", "strong"), lines, scroll)


def size(width: int) -> int:
    """Outer width of a popup on a canvas of this width."""
    return min(width, 110 if width >= 120 else width - 2)
