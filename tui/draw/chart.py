"""Charts of cells: a bar, and an area over time in eighths of a cell."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tui.draw.canvas import Canvas


def nice_top(values: Sequence[float], least: float = 0.0) -> float:
    """The chart's upper end: the next 1, 2, 2.5 or 5 times a power of ten at or above the highest value."""
    top = max((value for value in values if not math.isnan(value)), default=0.0)
    top = max(top, least)
    if top <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(top))
    for step in (1.0, 2.0, 2.5, 5.0, 10.0):
        if top <= step * power * (1 + 1e-9):
            return step * power
    return 10.0 * power


def area(canvas: Canvas, values: Sequence[float], top: float, style: str = "data", onset: int | None = None) -> None:
    """Fill the canvas with one column a value, from 0 at the bottom to ``top``.

    A column without data stays empty (but for a faint dot on the base line): a hole is not a zero. A value of 0 draws
    the lowest eighth. Higher lines are brighter. ``onset`` marks a column.
    """
    levels, steps = canvas.glyphs.blocks, canvas.height * 8
    shown = values[: canvas.width]
    heights = [0 if math.isnan(value) else max(1, min(steps, round(value / top * steps))) for value in shown]
    for row in range(canvas.height):
        y, low = canvas.height - 1 - row, row * 8
        signs = levels[:1] * low + levels + levels[-1:] * (steps - low - 8)  # the line's sign by the column's height
        line = "".join([signs[height] for height in heights])
        if not line.isspace():
            canvas.put(0, y, line, shade(style, row, canvas.height))
        if onset is not None and onset < len(heights) and heights[onset] <= low:
            canvas.put(onset, y, canvas.glyphs.onset, "onset")
    hole = " " if canvas.glyphs.ascii else "·"
    for x, value in enumerate(shown):
        if math.isnan(value) and x != onset:
            canvas.put(x, canvas.height - 1, hole, "faint")


SHADES = 4


def shade(style: str, row: int, height: int) -> str:
    """The style of a line of the chart: the brightest at the top (`SHADES` of them, ``data0`` the darkest)."""
    return f"{style}{SHADES - 1 - (height - 1 - row) * SHADES // max(height, 3)}"


def bar(canvas: Canvas, x: int, y: int, width: int, share: float | None, style: str) -> None:
    """A horizontal bar in whole cells and a rest; no data is an empty bar of dashes."""
    glyphs = canvas.glyphs
    if share is None or math.isnan(share):
        canvas.put(x, y, glyphs.none * width, "faint")
        return
    filled = min(width, max(0, round(share * width)))
    if share > 0 and filled == 0:
        filled = 1
    if share < 1 and filled == width:
        filled = width - 1
    canvas.put(x, y, glyphs.full * filled, style)
    canvas.put(x + filled, y, glyphs.rest * (width - filled), "faint")
