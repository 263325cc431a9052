"""The block map: one sign a cell, its colour and its shape both saying what most of the cell's blocks are."""

from __future__ import annotations

from collections.abc import Iterator

from tui.draw.canvas import Canvas, Glyphs
from tui.pools import UNKNOWN, Cell, Pool
from tui.quantity import text_of

# Cell: the sign, its ASCII letter, the word, the style, and the state of kv:pool_state_blocks that it stands for.
SIGNS = {
    Cell.FREE: ("·", ".", "free", "map_free", "free"),
    Cell.CACHED: ("░", "c", "cached, evictable", "map_cached", "cached"),
    Cell.USED: ("█", "U", "used", "map_used", "used"),
    Cell.LEASED: ("◆", "L", "leased, pinned", "map_leased", "leased"),
    Cell.WASTE: ("▄", "w", "tail waste", "map_waste", ""),
    Cell.RESERVED: ("□", "r", "reserved", "map_reserved", "reserved"),
}


def sign_of(cell: int, glyphs: Glyphs) -> tuple[str, str]:
    """Sign and style of a cell."""
    if cell == UNKNOWN:
        return "?", "muted"
    sign, letter, _, style, _ = SIGNS[Cell(cell)]
    return letter if glyphs.ascii else sign, style


def shape(cells: int, width: int, height: int) -> tuple[int, int, int]:
    """Columns, lines and width of a cell for a map that fits: the widest cell, then the fewest lines."""
    for wide in (2, 1):
        for columns in (64, 32, 128, 16, max(1, width // wide)):
            lines = -(-cells // columns)
            if columns * wide <= width and lines <= height:
                return columns, lines, wide
    return max(1, width), height, 1


def draw(canvas: Canvas, pool: Pool) -> int:
    """The map; returns its lines. What does not fit is not drawn (the least screen has room for 256 cells)."""
    columns, lines, wide = shape(len(pool.cells), canvas.width, canvas.height)
    for index, cell in enumerate(pool.cells[: columns * lines]):
        y, x = divmod(index, columns)
        sign, style = sign_of(cell, canvas.glyphs)
        canvas.put(x * wide, y, sign * wide, "stale" if pool.age_s is not None else style)
    return lines


def legend(pool: Pool, glyphs: Glyphs) -> Iterator[tuple[str, str, str]]:
    """Sign, style and words of each state; with its share of the blocks where the pool counts it."""
    for cell in Cell:
        sign, style = sign_of(cell, glyphs)
        _, _, word, _, state = SIGNS[cell]
        share = pool.waste if cell is Cell.WASTE else pool.share(state)
        yield sign, style, word if share is None else f"{word} {text_of(share, 'ratio')}"


def draw_legend(canvas: Canvas, pool: Pool) -> int:
    """As many states a line as fit; returns the lines taken."""
    x = y = 0
    for sign, style, words in legend(pool, canvas.glyphs):
        size = 2 + len(words)
        if x and x + size > canvas.width:
            x, y = 0, y + 1
        canvas.put(x, y, sign, style)
        canvas.put(x + 2, y, words, "muted")
        x += size + 2
    return y + 1
