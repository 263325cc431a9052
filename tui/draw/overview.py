"""The Overview: tiles, engines, and on wide screens the findings beside them."""

from __future__ import annotations

from tui.draw import events, table, tiles
from tui.draw.canvas import Canvas
from tui.look import Look
from tui.snapshot import Snapshot

_ASIDE_FROM = 140


def draw(canvas: Canvas, shot: Snapshot, look: Look) -> None:
    """Lay the parts out for the canvas' size: the table takes what the tiles leave, but not more than it needs."""
    main = canvas
    if canvas.width >= _ASIDE_FROM:
        wide = min(64, canvas.width * 3 // 10)
        main = canvas.area(0, 0, canvas.width - wide - 1, canvas.height)
        aside = canvas.area(canvas.width - wide, 0, wide, canvas.height)
        low = 8 if canvas.height >= 30 else 5
        from tui.draw import findings  # the narrow first picture does without

        findings.draw_aside(aside.area(0, 0, wide, canvas.height - low), shot)
        events.draw(aside.area(0, canvas.height - low, wide, low), shot)
    strip = 1 if main is canvas else 0
    needed = 2 + (len(shot.rows) if len(shot.rows) == 1 else len(shot.rows) + 1)
    table_height = max(4, min(needed, (main.height - strip) * 6 // 10))
    tile_height = main.height - strip - table_height
    tiles.draw(main.area(0, 0, main.width, tile_height), shot, look)
    below = main.area(0, tile_height, main.width, main.height - strip - tile_height)
    if below.height > needed + 2:
        below = below.area(0, 1, below.width, below.height - 1)
    table.draw(below, shot, look)
    if strip:
        events.draw(main.area(0, main.height - 1, main.width, 1), shot)
