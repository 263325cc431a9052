"""A grid of cells with named styles; drawing outside it is cut off, never an error."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

Row = tuple[tuple[str, ...], tuple[str, ...]]
"""One line as characters and style names; a wide character is followed by an empty cell."""


class Hit(NamedTuple):
    """A part of the canvas that acts when clicked: ``action`` is an action of the app."""

    x: int
    y: int
    width: int
    height: int
    action: str


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The signs of the screen; each state has a sign and a word, so that none rests on colour."""

    ok: str
    bad: str
    unknown: str
    wait: str
    stale: str
    none: str
    live: str
    pause: str
    play: str
    mark: str
    ellipsis: str
    onset: str
    bullet: str
    arrow: str
    minus: str
    blocks: str
    full: str
    rest: str
    line: str
    frame: str  # corners and sides: top-left, top-right, bottom-left, bottom-right, horizontal, vertical
    down: str
    up: str
    ascii: bool = False


UNICODE = Glyphs(
    ok="✓",
    bad="▲",
    unknown="?",
    wait="…",
    stale="◌",
    none="–",
    live="●",
    pause="‖",
    play="▶",
    mark="▸",
    ellipsis="…",
    onset="┊",
    bullet="•",
    arrow="→",
    minus="−",
    blocks=" ▁▂▃▄▅▆▇█",
    full="━",
    rest="─",
    line="─",
    frame="╭╮╰╯─│",
    down="↓",
    up="↑",
)
ASCII = Glyphs(
    ok="+",
    bad="!",
    unknown="?",
    wait=".",
    stale="~",
    none="-",
    live="*",
    pause="||",
    play=">",
    mark=">",
    ellipsis="~",
    onset="|",
    bullet="*",
    arrow="->",
    minus="-",
    blocks=" .:-=+*%#",
    full="#",
    rest=".",
    line="-",
    frame="++++-|",
    down="v",
    up="^",
    ascii=True,
)


_SINGLE = frozenset("─━│╭╮╰╯▁▂▃▄▅▆▇█░…–−•→↑↓●◌▲▸▶‖┊✓·")
"""Signs of our own, known to take one cell."""
_ONE_A_CELL = re.compile(f"[ -~\xa0-\u02ff{''.join(_SINGLE)}]*")


_BREAKS = frozenset("\u2028\u2029")
"""Line and paragraph separators: control characters in all but name."""


def cells(text: str) -> Iterator[str]:
    """One string a cell: control characters become ``?`` (a label may hold anything), wide ones take two cells."""
    for char in text:
        if char < " " or "\x7f" <= char < "\xa0" or char in _BREAKS:
            yield "?"
        elif char < "\u0300" or char in _SINGLE:
            yield char
        elif unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Mn", "Me", "Cc", "Cs"):
            continue
        else:
            yield char
            if unicodedata.east_asian_width(char) in "WF":
                yield ""


_PLAIN = str.maketrans({"–": "-", "−": "-", "…": "~", "•": "*", "µ": "u", "→": ">", "×": "x", "’": "'"})


def ascii_of(text: str) -> str:
    """A text without a character beyond ASCII: the nearest one, else ``?``."""
    return text.translate(_PLAIN).encode("ascii", "replace").decode("ascii")


def width_of(text: str) -> int:
    """Cells that a text takes."""
    return len(text) if _ONE_A_CELL.fullmatch(text) else sum(1 for _ in cells(text))


class Canvas:
    """``width`` by ``height`` cells; `area` gives a part of it with its own origin."""

    def __init__(self, width: int, height: int, glyphs: Glyphs = UNICODE) -> None:
        self.width, self.height, self.glyphs = max(0, width), max(0, height), glyphs
        self.hits: list[Hit] = []
        self._chars = [[" "] * self.width for _ in range(self.height)]
        self._styles = [["text"] * self.width for _ in range(self.height)]
        self._left = self._top = 0

    def area(self, x: int, y: int, width: int, height: int) -> Canvas:
        """The rectangle as a canvas that shares the cells (cut to this one; it begins within it)."""
        x, y = max(0, x), max(0, y)
        part = object.__new__(Canvas)
        part.width = max(0, min(width, self.width - x))
        part.height = max(0, min(height, self.height - y))
        part.glyphs, part.hits = self.glyphs, self.hits
        part._chars, part._styles = self._chars, self._styles
        part._left, part._top = self._left + x, self._top + y
        return part

    def put(self, x: int, y: int, text: str, style: str = "text", width: int | None = None) -> int:
        """Write a text; longer than ``width`` it ends in an ellipsis. Returns the x after it."""
        if not 0 <= y < self.height or x >= self.width:
            return x
        if self.glyphs.ascii and not text.isascii():
            text = ascii_of(text)
        room = self.width - x if width is None else min(width, self.width - x)
        signs = list(text) if _ONE_A_CELL.fullmatch(text) else list(cells(text))
        if len(signs) > room:
            signs = self._cut(signs, room)
        skip = max(0, -x)
        signs = signs[skip:]
        left = self._left + x + skip
        self._chars[self._top + y][left : left + len(signs)] = signs
        self._styles[self._top + y][left : left + len(signs)] = [style] * len(signs)
        return x + skip + len(signs)

    def _cut(self, signs: list[str], room: int) -> list[str]:
        if room <= 0:
            return []
        kept = signs[: room - 1]
        if kept and signs[room - 1] == "":  # half of a wide character
            kept[-1] = " "
        return [*kept, self.glyphs.ellipsis]

    def right(self, x: int, y: int, text: str, style: str = "text") -> int:
        """Write a text that ends before ``x``; returns the x where it begins."""
        start = x - width_of(text)
        self.put(start, y, text, style)
        return start

    def fill(self, y: int, style: str, x: int = 0, width: int | None = None) -> None:
        """Style a stretch of a line and keep its characters."""
        if 0 <= y < self.height:
            count = max(0, min(self.width - x, self.width if width is None else width))
            left = self._left + x
            self._styles[self._top + y][left : left + count] = [style] * count

    def tint(self, y: int, mark: str) -> None:
        """Keep each cell's style on a line, seen through ``mark``: ``warn`` becomes ``warn@select``."""
        if 0 <= y < self.height:
            styles = self._styles[self._top + y]
            for x in range(self._left, self._left + self.width):
                styles[x] = f"{styles[x]}@{mark}"

    def rule(self, y: int, style: str = "faint", x: int = 0, width: int | None = None) -> None:
        self.put(x, y, self.glyphs.line * (self.width - x if width is None else width), style)

    def frame(self, title: str = "", style: str = "faint", title_style: str = "title") -> Canvas:
        """Draw a box around the whole and return the inside."""
        tl, tr, bl, br, flat, side = tuple(self.glyphs.frame)
        self.put(0, 0, tl + flat * (self.width - 2) + tr, style)
        first, last = self._left, self._left + self.width - 1
        for y in range(self._top + 1, self._top + self.height - 1 if self.width else 0):
            self._chars[y][first] = self._chars[y][last] = side
            self._styles[y][first] = self._styles[y][last] = style
        self.put(0, self.height - 1, bl + flat * (self.width - 2) + br, style)
        if title:
            self.put(2, 0, f" {title} ", title_style, width=self.width - 4)
        return self.area(1, 1, self.width - 2, self.height - 2)

    def hit(self, action: str, x: int = 0, y: int = 0, width: int | None = None, height: int = 1) -> None:
        """Make a part act when clicked."""
        self.hits.append(Hit(self._left + x, self._top + y, self.width if width is None else width, height, action))

    def rows(self) -> list[Row]:
        return [(tuple(c), tuple(s)) for c, s in zip(self._chars, self._styles, strict=True)]

    def text(self) -> str:
        """The characters alone, for tests and for the clipboard."""
        return "\n".join("".join(row).rstrip() for row in self._chars)


def spans(row: Row) -> list[tuple[str, str]]:
    """Runs of one style: (text, style)."""
    chars, styles = row
    found, start = [], 0
    for style, run in groupby(styles):
        end = start + sum(1 for _ in run)
        found.append(("".join(chars[start:end]), style))
        start = end
    return found
