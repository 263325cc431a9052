"""The Sources screen: what is seen, what is not, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tui.draw.canvas import Canvas, Glyphs
from tui.draw.findings import paint
from tui.draw.prose import Line, wrapped
from tui.look import Look
from tui.quantity import age, text_of
from tui.snapshot import Snapshot, SourceView
from tui.vocabulary import vocabulary

_STATE = len("not-exposition")
_COLUMNS = (("AGE", 8), ("SAMPLES", 8), ("PAGE", 9), ("SCRAPE", 8), ("FAMILIES", 9), ("SIGNALS", 9))


def draw(canvas: Canvas, shot: Snapshot, look: Look) -> None:
    """All targets, and under them the selected one's signals."""
    if not shot.sources:
        canvas.put(2, 1, "no source yet", "muted")
        return
    room = max(3, min(len(shot.sources) + 3, canvas.height // 2))
    index = min(look.source, len(shot.sources) - 1)
    _list(canvas.area(0, 0, canvas.width, room).frame("Sources"), shot.sources, index)
    chosen = shot.sources[index]
    inside = canvas.area(0, room, canvas.width, canvas.height - room).frame(chosen.target)
    paint(inside, list(_detail(chosen, inside.width - 2, canvas.glyphs)), look.scroll)


def _list(canvas: Canvas, sources: Sequence[SourceView], index: int) -> None:
    columns = _fitting(canvas.width)
    name_width = canvas.width - 3 - _STATE - sum(width + 1 for _, width in columns)
    canvas.put(3, 0, "TARGET", "head")
    canvas.put(3 + name_width, 0, "STATE", "head")
    x = 3 + _STATE + name_width
    for head, width in columns:
        x += width + 1
        canvas.right(x - 1, 0, head, "head")
    room = canvas.height - 1
    first = max(0, min(index - room // 2, len(sources) - room))
    for y, source in enumerate(sources[first : first + room], start=1):
        chosen = first + y - 1 == index
        base = "select" if chosen else "text"
        canvas.put(0, y, " " * canvas.width, base)
        sign, style = sign_of(source, canvas.glyphs)
        canvas.put(1, y, sign, base if chosen else style)
        canvas.put(3, y, _ending(source.title, name_width - 1, canvas.glyphs), base)
        canvas.put(3 + name_width, y, source.state, base if chosen else style, width=_STATE)
        x = 3 + _STATE + name_width
        for (head, width), text in zip(columns, _cells(source, canvas.glyphs.none), strict=False):
            x += width + 1
            canvas.right(x - 1, y, text, base if chosen or head != "AGE" else "muted")
        canvas.hit(f"app.pick({first + y - 1})", 0, y)


def _ending(target: str, width: int, glyphs: Glyphs) -> str:
    """A target cut at its beginning: its end tells it from its neighbours."""
    return target if len(target) <= width else glyphs.ellipsis + target[len(target) - width + 1 :]


def _fitting(width: int) -> list[tuple[str, int]]:
    room, kept = width - 3 - _STATE - 23, []
    for head, size in _COLUMNS:
        if size + 1 > room:
            break
        room -= size + 1
        kept.append((head, size))
    return kept


def sign_of(source: SourceView, glyphs: Glyphs) -> tuple[str, str]:
    """Sign and style of a source's state."""
    if source.state == "fresh":
        return glyphs.live, "ok"
    if source.state == "stale":
        return glyphs.stale, "warn"
    return glyphs.unknown if source.state in ("unsupported", "no-permission") else glyphs.bad, "bad"


def _cells(source: SourceView, none: str) -> Iterator[str]:
    yield none if source.age_s is None else age(source.age_s)
    yield none if source.samples is None else str(source.samples)
    yield text_of(source.page_bytes, "bytes", none)
    yield text_of(source.duration_s, "seconds", none)
    yield none if source.families is None else str(source.families)
    total = len(source.present) + len(source.absent)
    yield f"{len(source.present)}/{total}" if total else none


def _detail(source: SourceView, width: int, glyphs: Glyphs) -> Iterator[Line]:
    style = sign_of(source, glyphs)[1]
    yield [("State     ", "muted"), (source.state, style)]
    if source.error:
        for index, line in enumerate(wrapped(source.error, width - 10)):
            yield [("Fault     " if index == 0 else " " * 10, "muted"), *line]
    if source.instances:
        yield from _named("Instances ", ", ".join(source.instances), width)
    if not source.present and not source.absent:
        yield []
        yield [("No canonical signal seen here yet.", "muted")]
        return
    yield from _signals(f"Seen here ({len(source.present)})", source.present, width, glyphs.ok, "ok")
    yield from _signals(
        f"Not seen here ({len(source.absent)}): not on its page, or it has not counted yet",
        source.absent,
        width,
        glyphs.none,
        "muted",
    )


def _named(head: str, text: str, width: int) -> Iterator[Line]:
    for index, line in enumerate(wrapped(text, width - len(head))):
        yield [(head if index == 0 else " " * len(head), "muted"), *line]


def _signals(title: str, names: Sequence[str], width: int, sign: str, style: str) -> Iterator[Line]:
    """Names by group, as many a line as fit."""
    yield []
    yield [(title, "head")]
    terms = vocabulary()
    groups: dict[str, list[str]] = {}
    for name in names:
        group = terms[name].group if name in terms else "other"
        groups.setdefault(group, []).append(name.removeprefix("kv:"))
    for group, members in groups.items():
        for index, line in enumerate(wrapped("  ".join(members), width - 13)):
            head = f"{sign} {group:<10} " if index == 0 else " " * 13
            yield [(head, style), *line]
