"""A widget that shows a canvas and repaints only the lines that differ from the last one."""

from __future__ import annotations

from collections.abc import Callable

from rich.segment import Segment
from textual import events
from textual.geometry import Region
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from tui.draw.canvas import Canvas, Glyphs, Hit, Row, spans
from tui.themes import Palette


class Pane(Widget, can_focus=False):
    """``painter(canvas)`` draws; `paint` calls it for the present size and refreshes what changed."""

    DEFAULT_CSS = "Pane { height: 1fr; width: 1fr; }"

    def __init__(self, painter: Callable[[Canvas], None], palette: Palette, glyphs: Glyphs, id: str) -> None:
        super().__init__(id=id)
        self._painter, self._palette, self._glyphs = painter, palette, glyphs
        self._rows: list[Row] = []
        self._strips: list[Strip] = []
        self._hits: list[Hit] = []

    def paint(self, palette: Palette | None = None) -> None:
        """Draw anew; with another palette every line is painted."""
        if palette is not None and palette is not self._palette:
            self._palette, self._rows = palette, []
        width, height = self.size
        if not width or not height:
            return
        canvas = Canvas(width, height, self._glyphs)
        self._painter(canvas)
        self._hits = canvas.hits
        rows = canvas.rows()
        changed = [y for y, row in enumerate(rows) if y >= len(self._rows) or self._rows[y] != row]
        if len(self._rows) != len(rows):
            self._strips = [Strip.blank(width)] * len(rows)
            changed = list(range(len(rows)))
        for y in changed:
            self._strips[y] = self._strip(rows[y])
        self._rows = rows
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def _strip(self, row: Row) -> Strip:
        style = self._palette.style
        return Strip([Segment(text, style(name)) for text, name in spans(row)], len(row[0]))

    def render_line(self, y: int) -> Strip:
        if y >= len(self._strips):
            return Strip.blank(self.size.width, self._palette.style("text"))
        return self._strips[y].apply_offsets(0, y)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected cells as text, for the clipboard."""
        return selection.extract("\n".join("".join(row[0]).rstrip() for row in self._rows)), "\n"

    def on_resize(self) -> None:
        self._rows = []
        self.paint()

    async def on_click(self, event: events.Click) -> None:
        for hit in reversed(self._hits):
            if hit.x <= event.x < hit.x + hit.width and hit.y <= event.y < hit.y + hit.height:
                event.stop()
                await self.run_action(hit.action)
                return
