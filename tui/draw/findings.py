"""The Findings screen: what is wrong, what cannot be told, and the whole story of the selected one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from playbooks.verdict import CoreCheck, Diagnosis, Finding, Undecided, Unexplained, Verdict
from tui.draw import card
from tui.draw.canvas import Canvas, Glyphs
from tui.draw.prose import Line, wrapped
from tui.draw.verdict import member_name, waiting
from tui.look import Look
from tui.quantity import clock
from tui.snapshot import Snapshot

Item = Finding | Unexplained | Undecided
Runbook = Callable[[str], str]
"""Cause to the text of its page; "" when there is none."""

_SIDE_FROM = 110


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the list: sign, its style, text, and the words to its right."""

    sign: str
    style: str
    text: str
    right: str
    item: Item


def entries(diagnosis: Diagnosis | None, glyphs: Glyphs) -> list[Entry]:
    """Findings, most important first; then what nothing explains; then what cannot be decided."""
    if diagnosis is None:
        return []
    found = []
    for f in diagnosis.findings:
        style = "warn" if f.verdict is Verdict.SUSPECTED else "bad"
        since = f"since {clock(f.onset_ms)}" if f.onset_ms is not None else f.verdict.value
        found.append(Entry(glyphs.bad, style, f"{f.cause}  {member_name(f.member)}", since, f))
    for u in diagnosis.unexplained:
        text = f"unexplained: {u.resource}  {member_name(u.member)}"
        found.append(Entry(glyphs.bad, "warn", text, "no cause", u))
    for d in diagnosis.unknown:
        text = f"{d.cause}  {member_name(d.member)}"
        found.append(Entry(glyphs.unknown, "muted", text, "cannot tell", d))
    return found


def draw(canvas: Canvas, shot: Snapshot, look: Look, runbook: Runbook = lambda cause: "") -> None:
    """List and card: side by side when wide, else the list over the card, and the open card alone."""
    listed = entries(shot.diagnosis, canvas.glyphs)
    item = listed[min(look.item, len(listed) - 1)].item if listed else None
    if look.open and item is not None:
        _card(canvas, item, look.scroll, runbook)
        return
    if canvas.width >= _SIDE_FROM:
        wide = min(70, canvas.width * 2 // 5)
        core = shot.diagnosis.core if shot.diagnosis and listed else ()
        low = min(len(core) * 2 + 2, canvas.height // 2) if core else 0
        _list(canvas.area(0, 0, wide, canvas.height - low), shot, listed, look)
        if core:
            _core(canvas.area(0, canvas.height - low, wide, low).frame("What healthy rests on"), core)
        rest = canvas.area(wide + 1, 0, canvas.width - wide - 1, canvas.height)
    else:
        high = min(canvas.height // 2, max(4, len(listed) + 2) + _core_height(shot, listed))
        _list(canvas.area(0, 0, canvas.width, high), shot, listed, look)
        rest = canvas.area(0, high, canvas.width, canvas.height - high)
    if item is not None:
        _card(rest, item, look.scroll, runbook)
    elif shot.diagnosis is not None:
        _core(rest.frame("What healthy rests on"), shot.diagnosis.core)


def draw_aside(canvas: Canvas, shot: Snapshot) -> None:
    """Beside the Overview: the first findings in short, or the core questions."""
    inside = canvas.frame("Findings")
    canvas.hit("app.show('findings')", 0, 0, canvas.width, canvas.height)
    if shot.diagnosis is None:
        paint(inside, list(wrapped(waiting(shot), inside.width - 2)), 0)
        return
    lines: list[Line] = []
    for f in shot.diagnosis.findings[:3]:
        lines += _short(f, inside.width - 2, canvas.glyphs)
    for u in shot.diagnosis.unexplained[:3]:
        said = f"unexplained: {u.says or u.resource} on {member_name(u.member)}"
        lines += [*wrapped(said, inside.width - 2, "warn", f"{canvas.glyphs.bad} "), []]
    lines += [line for check in shot.diagnosis.core for line in core_line(check, inside.width - 2, canvas.glyphs)]
    if shot.diagnosis.unknown:
        lines += [[], [(f"Cannot be decided: {len(shot.diagnosis.unknown)}", "head")]]
        for cause in dict.fromkeys(u.cause for u in shot.diagnosis.unknown):
            lines.append([(f"{canvas.glyphs.unknown} ", "muted"), (cause, "muted")])
    paint(inside, lines, 0)


def _short(f: Finding, width: int, glyphs: Glyphs) -> Iterator[Line]:
    style = "warn" if f.verdict is Verdict.SUSPECTED else "bad"
    yield [(f"{glyphs.bad} {f.cause}", style), (f"  {f.verdict.value}", "muted")]
    since = f" since {clock(f.onset_ms)}" if f.onset_ms is not None else ""
    yield [("  on ", "muted"), (member_name(f.member), "strong"), (since, "muted")]
    for proof in f.evidence[:4]:
        yield from wrapped(proof.says or proof.test, width, "text", f"  {glyphs.ok} ")
    for other in f.refuted[:3]:
        yield from wrapped(f"not {other.cause}: {other.says or other.by}", width, "muted", f"  {glyphs.minus} ")
    for name, amount in list(f.cost.items())[:2]:
        yield [(f"  {name.replace('_', ' ')} ", "muted"), (card.quantity(amount.value, amount.unit), "value")]
    if f.remedies:
        yield from wrapped(f.remedies[0], width, "data", f"  {glyphs.arrow} ")
    yield []


def core_line(check: CoreCheck, width: int, glyphs: Glyphs) -> Iterator[Line]:
    """One of the questions behind "healthy", with its answer as a sign and in words."""
    sign, style, word = {
        False: (glyphs.ok, "ok", "fine"),
        True: (glyphs.bad, "bad", "bad"),
        None: (glyphs.unknown, "muted", "undecided"),
    }[check.bad]
    head = f"{sign} {check.name:<11}"
    for index, line in enumerate(wrapped(check.says or word, width, "text", head)):
        yield [(head, style) if index == 0 else line[0], *line[1:]]


def _core_height(shot: Snapshot, listed: Sequence[Entry]) -> int:
    return 0 if listed or shot.diagnosis is None else len(shot.diagnosis.core)


def _core(canvas: Canvas, core: Sequence[CoreCheck]) -> None:
    paint(canvas, [line for check in core for line in core_line(check, canvas.width - 2, canvas.glyphs)], 0)


def _list(canvas: Canvas, shot: Snapshot, listed: Sequence[Entry], look: Look) -> None:
    inside = canvas.frame("Findings")
    if shot.diagnosis is None:
        paint(inside, list(wrapped(waiting(shot), inside.width - 2)), 0)
        return
    if not listed:
        left = [check.name for check in shot.diagnosis.core if check.bad is None]
        if left:
            inside.put(1, 0, f"nothing found; undecided: {', '.join(left)} (see below)", "muted")
        else:
            inside.put(1, 0, "nothing found, and nothing left undecided", "ok")
        return
    index = min(look.item, len(listed) - 1)
    first = max(0, min(index - inside.height // 2, len(listed) - inside.height))
    for y, entry in enumerate(listed[first : first + inside.height]):
        chosen = first + y == index
        base = "select" if chosen else "text"
        inside.put(0, y, " " * inside.width, base)
        inside.put(1, y, entry.sign, base if chosen else entry.style)
        inside.put(3, y, entry.text, base, width=inside.width - 5 - len(entry.right))
        inside.right(inside.width - 1, y, entry.right, base if chosen else "muted")
        inside.hit(f"app.pick({first + y})", 0, y)


def _card(canvas: Canvas, item: Item, scroll: int, runbook: Runbook) -> None:
    where = f" on {member_name(item.member)}" if item.member else ""
    inside = canvas.frame(_title(item) + where)
    paint(inside, lines_of(item, inside.width - 2, canvas.glyphs, runbook), scroll)


def _title(item: Item) -> str:
    return item.resource if isinstance(item, Unexplained) else item.cause


def lines_of(item: Item, width: int, glyphs: Glyphs, runbook: Runbook) -> list[Line]:
    """The card of whatever the item is."""
    if isinstance(item, Finding):
        return list(card.finding(item, width, glyphs, runbook(item.cause)))
    if isinstance(item, Unexplained):
        return list(card.unexplained(item, width, glyphs))
    return list(card.undecided(item, width, glyphs))


def paint(canvas: Canvas, lines: Sequence[Line], scroll: int) -> None:
    """Lines from ``scroll`` on, with a word on how many are left below."""
    scroll = max(0, min(scroll, len(lines) - canvas.height))
    for y, line in enumerate(lines[scroll : scroll + canvas.height]):
        x = 1
        for text, style in line:
            x = canvas.put(x, y, text, style)
    left = len(lines) - scroll - canvas.height
    if left > 0:
        note = f" {left} more {canvas.glyphs.down} "
        canvas.right(canvas.width, canvas.height - 1, note, "key")
