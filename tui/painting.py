"""The three parts of the screen, painted from one view of things: snapshot, look, and what lies on top."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from probes.records import dataclass
from tui.draw import keys, overview, verdict
from tui.draw.canvas import Canvas
from tui.look import Look, selected
from tui.snapshot import Snapshot

if TYPE_CHECKING:
    from tui.provenance import Provenance

LEAST = (80, 24)


@dataclass(slots=True)
class Scene:
    """All that painting needs; the app changes it, the panes only read it.

    What the first picture does without is imported when it is asked for.

    ``over`` is what lies over the screen: "" (nothing), "help" or "origin"; ``prompt`` is the seek line being typed.
    """

    shot: Snapshot
    look: Look = field(default_factory=Look)
    over: str = ""
    over_scroll: int = 0
    prompt: str | None = None
    flash: str = ""

    def top(self, canvas: Canvas) -> None:
        verdict.draw(canvas, self.shot, self.look.screen)

    def body(self, canvas: Canvas) -> None:
        if self.look.screen == "findings":
            from tui.draw import findings

            findings.draw(canvas, self.shot, self.look, lambda cause: self.shot.pages.get(cause, ""))
        elif self.look.screen == "sources":
            from tui.draw import sources

            sources.draw(canvas, self.shot, self.look)
        elif self.look.screen == "pool":
            from tui.draw import pool

            pool.draw(canvas, self.shot, self.look)
        else:
            overview.draw(canvas, self.shot, self.look)
        self._overlay(canvas)

    def _overlay(self, canvas: Canvas) -> None:
        if not self.over:
            return
        from tui.draw import popup

        inner = popup.size(canvas.width) - 4
        if self.over == "help":
            popup.draw(canvas, "Help: esc closes", popup.help_lines(inner, canvas.glyphs), self.over_scroll)
        elif self.over == "origin":
            row = selected(self.shot, self.look)
            lines = popup.provenance_lines(self._answered(), row, self.look.panel, inner)
            popup.draw(canvas, "Where this number comes from: esc closes", lines, self.over_scroll)

    def _answered(self) -> Provenance | None:
        row = selected(self.shot, self.look)
        origin = self.shot.origin
        return origin if origin and (origin.panel, origin.entity) == (self.look.panel, row.key) else None

    def bottom(self, canvas: Canvas) -> None:
        if self.prompt is not None:
            canvas.put(0, 0, " " * canvas.width, "bar")
            x = canvas.put(1, 0, "seek to ", "key")
            x = canvas.put(x, 0, self.prompt, "bar")
            x = canvas.put(x, 0, " ", "select_cell")
            canvas.put(
                x + 1, 0, self.flash or "HH:MM:SS or -5m, enter; esc leaves", "key" if self.flash else "key_text"
            )
            return
        keys.draw(canvas, self.look.screen, self.shot.cursor, self.flash)

    def too_small(self, canvas: Canvas) -> None:
        """One line in the middle: what the screen needs."""
        wide, high = LEAST
        full = f"kvtop needs {wide}x{high}, this is {canvas.width}x{canvas.height} (q quits)"
        texts = (full, f"needs {wide}x{high} (q quits)", f"{wide}x{high}: q quits", "q quits")
        text = next((text for text in texts if len(text) <= canvas.width), texts[-1])
        canvas.put(max(0, (canvas.width - len(text)) // 2), canvas.height // 2, text, "warn", width=canvas.width)
