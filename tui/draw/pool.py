"""The Pool screen: where the blocks lie, in which pieces the free ones, what is wasted, who holds them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from tui.draw import blockmap, chart
from tui.draw.canvas import Canvas
from tui.draw.prose import wrapped
from tui.look import Look
from tui.pools import Pool
from tui.quantity import age, text_of
from tui.snapshot import Snapshot

_MAP_WIDTH = 66  # 64 cells and a frame
_DETAIL_HEIGHT = 19
_LACKS = "This engine does not say which blocks lie where: no block map, no run lengths, no counted waste."


def chosen(pools: Sequence[Pool], look: Look) -> int:
    """The selected pool's place; the first when it is gone or none is."""
    return next((i for i, pool in enumerate(pools) if pool.entity is look.entity), 0)


def draw(canvas: Canvas, shot: Snapshot, look: Look) -> None:
    """The strip of pools, the maps that fit (the selected one's always), and the selected one's numbers."""
    if not shot.pools:
        words = "asking for the pools" if shot.pools is None else "no pool seen yet: no target says how full it is"
        canvas.put(2, 1, words, "muted")
        return
    at = chosen(shot.pools, look)
    _strip(canvas.area(0, 0, canvas.width, 1), shot.pools, at)
    body = canvas.area(0, 1, canvas.width, canvas.height - 1)
    if body.width >= 2 * _MAP_WIDTH and body.height >= _DETAIL_HEIGHT + 12:
        height = _maps(body.area(0, 0, body.width, body.height - _DETAIL_HEIGHT), shot.pools, at)
        _wide(body.area(0, height, body.width, body.height - height), shot.pools[at])
    else:
        _narrow(body, shot.pools[at])


def _strip(canvas: Canvas, pools: Sequence[Pool], at: int) -> None:
    """Names and how full each is, scrolled so that the selected one is seen."""
    texts = [f" {pool.name} {text_of(pool.number('usage'), 'ratio', canvas.glyphs.none)} " for pool in pools]
    first = 0
    while first < at and sum(map(len, texts[first : at + 1])) > canvas.width - 12:
        first += 1
    x = canvas.put(0, 0, f"{canvas.glyphs.minus}{first}" if first else "", "onset")
    for index in range(first, len(pools)):
        if index > first and x + len(texts[index]) > canvas.width - 5:
            canvas.right(canvas.width, 0, f"+{len(pools) - index}", "onset")
            break
        silent = pools[index].age_s is not None
        canvas.hit(f"app.pick({index})", x, 0, len(texts[index]))
        x = canvas.put(x, 0, texts[index], "select" if index == at else "stale" if silent else "muted")


def _maps(canvas: Canvas, pools: Sequence[Pool], at: int) -> int:
    """The page of maps that holds the selected one; returns the lines taken."""
    fit_across = max(1, canvas.width // _MAP_WIDTH)
    needed = max((-(-len(pool.cells) // 32) for pool in pools), default=0)
    high = max(5, min(needed, 8) + 3)
    down = max(1, min(canvas.height // high, -(-len(pools) // fit_across)))
    across = min(fit_across, -(-len(pools) // down))
    page = at // (across * down)
    for place, pool in enumerate(pools[page * across * down : (page + 1) * across * down]):
        row, column = divmod(place, across)
        left, right = canvas.width * column // across, canvas.width * (column + 1) // across
        part = canvas.area(left, row * high, right - left, high)
        index = page * across * down + place
        part.hit(f"app.pick({index})", 0, 0, part.width, part.height)
        inside = part.frame(_title(pool), "data" if index == at else "faint", "strong" if index == at else "title")
        inside = inside.area(1, 0, inside.width - 2, inside.height)
        _map(inside.area(0, 0, inside.width, inside.height - 1), pool)
        _capacity(inside, inside.height - 1, pool)
    return high * down


def _title(pool: Pool) -> str:
    silent = "" if pool.age_s is None else f": silent, as it was {age(pool.age_s)} ago"
    about = pool.entity.get("instance") if pool.entity.get("shard") else pool.system
    return f"{pool.name}{'  ' + about if about else ''}{silent}"


def _map(canvas: Canvas, pool: Pool) -> None:
    if pool.cells:
        blockmap.draw(canvas, pool)
        return
    chart.bar(canvas, 0, 0, canvas.width, pool.number("usage"), "data")
    for y, line in enumerate(wrapped(_LACKS, canvas.width, "muted"), start=1):
        canvas.put(0, y, line[-1][0], "muted")


def _capacity(canvas: Canvas, y: int, pool: Pool) -> None:
    canvas.put(0, y, "  ".join(_facts(pool, canvas.glyphs.none)), "muted")


def _facts(pool: Pool, none: str) -> Iterator[str]:
    yield f"{text_of(pool.number('usage'), 'ratio', none)} in use"
    yield f"{text_of(pool.number('blocks'), 'blocks', none)} blocks"
    yield f"of {text_of(pool.number('block_tokens'), 'tokens', none)} tokens"
    if pool.number("bytes") is not None:
        yield text_of(pool.number("bytes"), "bytes")
    if pool.cells and pool.cell_blocks:
        yield f"a cell: {pool.cell_blocks:.0f} {'block' if pool.cell_blocks == 1 else 'blocks'}"


def _narrow(canvas: Canvas, pool: Pool) -> None:
    """One pool on a small screen: map, legend, then runs beside waste, then sessions."""
    canvas.put(0, 0, _title(pool), "title" if pool.age_s is None else "stale", width=canvas.width)
    high = 4 if pool.cells else 3
    room = canvas.area(1, 1, canvas.width - 2, high)
    _map(room, pool)
    y = 1 + high
    if pool.cells:
        y += blockmap.draw_legend(canvas.area(1, y, canvas.width - 2, 2), pool)
    _capacity(canvas.area(1, y, canvas.width - 2, 1), 0, pool)
    half = canvas.width // 2
    left = canvas.area(1, y + 1, half - 2, canvas.height - y - 1)
    _runs(left, pool)
    right = canvas.area(half, y + 1, canvas.width - half - 1, canvas.height - y - 1)
    lines = _moves(right, pool)
    _sessions(right.area(0, lines + 1, right.width, right.height - lines - 1), pool)


def _wide(canvas: Canvas, pool: Pool) -> None:
    """The selected pool's numbers beside each other."""
    used = blockmap.draw_legend(canvas.area(1, 0, canvas.width - 2, 2), pool) if pool.cells else 0
    third = canvas.width // 3
    high = min(canvas.height - used, 14)
    parts = (("Free runs", _runs), ("Waste, evictions, refusals", _moves), ("Sessions", _sessions))
    for index, (title, part) in enumerate(parts):
        left = third * index
        wide = canvas.width - left if index == len(parts) - 1 else third
        inside = canvas.area(left, used, wide, high).frame(f"{title}: {pool.name}")
        part(inside.area(1, 0, inside.width - 2, inside.height), pool)


def _runs(canvas: Canvas, pool: Pool) -> None:
    """Free blocks by the length of their run, and whether a window finds one."""
    if not pool.runs:
        canvas.put(0, 0, "FREE RUNS", "head")
        canvas.put(0, 1, f"{canvas.glyphs.none} unsupported: no run lengths here", "muted", width=canvas.width)
        return
    total = math.fsum(pool.runs.values())
    x = canvas.put(0, 0, "FREE BLOCKS BY RUN", "head")
    canvas.right(canvas.width, 0, f"{text_of(total, 'blocks')} free" if x else "", "muted")
    wide = max(6, canvas.width - 20)
    for y, (run, blocks) in enumerate(sorted(pool.runs.items(), key=lambda one: _first(one[0])), start=1):
        canvas.put(0, y, f"{run:>6}", "muted")
        chart.bar(canvas, 7, y, wide, blocks / total if total else 0.0, "data")
        canvas.right(canvas.width, y, text_of(blocks, "blocks"), "value" if blocks else "muted")
    y = 1 + len(pool.runs)
    largest, needs = pool.number("largest_run"), pool.window_blocks
    style = "warn" if largest is not None and needs is not None and largest < needs else "value"
    x = canvas.put(0, y, "longest ", "muted")
    x = canvas.put(x, y, text_of(largest, "blocks", canvas.glyphs.none), style)
    if needs is not None:
        x = canvas.put(x, y, f", a window takes {needs}", "muted")
    each = pool.number("runs_each")
    if each is not None:
        count = text_of(each, "runs")
        runs = "run" if count == "1" else "runs"
        canvas.put(0, y + 1, f"{count} {runs} in an allocation", "muted", width=canvas.width)


def _first(run: str) -> int:
    digits = "".join(sign if sign.isdecimal() else " " for sign in run).split()
    return int(digits[0]) if digits else 0


def _moves(canvas: Canvas, pool: Pool) -> int:
    """Waste, evictions, refusals, leases; returns the lines taken."""
    lines = list(_told(pool, canvas.glyphs.none))
    for y, (head, text, style) in enumerate(lines):
        canvas.put(0, y, head, "head")
        canvas.put(9, y, text, style, width=canvas.width - 9)
    return len(lines)


def _told(pool: Pool, none: str) -> Iterator[tuple[str, str, str]]:
    if pool.slots:
        empty = pool.slots.get("tail_waste")
        amount = f"{text_of(pool.waste, 'ratio', none)} of the slots"
        yield "WASTE", f"{amount}, {text_of(empty, 'tokens', none)} empty", "value"
    elif pool.number("estimated_waste") is not None:
        yield "WASTE", f"about {text_of(pool.number('estimated_waste'), 'ratio')} (half a block a request)", "value"
    else:
        yield "WASTE", f"{none} not counted here, no lengths to estimate it", "muted"
    yield "EVICTED", _rates(pool.evicted, none), "value" if pool.evicted else "muted"
    bad = any(rate > 0 for rate in pool.refused.values())
    yield "REFUSED", _rates(pool.refused, none), "warn" if bad else "value" if pool.refused else "muted"
    leases, pins = pool.number("leases"), pool.number("pins")
    if leases is not None or pins is not None:
        yield "LEASES", f"{text_of(leases, 'leases', none)} running, {text_of(pins, 'pins', none)} pins", "value"


def _rates(by: Mapping[str, float], none: str) -> str:
    """Rates a second by reason, those that are not 0; nothing counted is no zero."""
    if not by:
        return f"{none} no rate yet, or not counted"
    told = [f"{reason} {text_of(rate, 'per_second')}" for reason, rate in by.items() if rate > 0]
    return "  ".join(told) or "none"


_COLUMNS = (("ACTIVE", 7), ("IDLE", 5), ("HELD", 7), ("TTL", 7), ("LATE", 6))
_DISPENSABLE = ("TTL", "IDLE")  # where the names of the classes need the room


def _sessions(canvas: Canvas, pool: Pool) -> None:
    """Sessions by class; LATE: the share of those asked for again whose TTL had ended."""
    if canvas.height < 2:
        return
    columns = _columns(canvas.width, max((len(one.name) for one in pool.sessions), default=0))
    name_width = max(5, canvas.width - sum(width for _, width in columns))
    canvas.put(0, 0, "SESSIONS" if name_width > 8 else "CLASS", "head", width=name_width)
    x = name_width
    for head, width in columns:
        x += width
        canvas.right(x, 0, head, "head")
    none = canvas.glyphs.none
    if not pool.sessions:
        canvas.put(0, 1, f"{none} no sessions here", "muted")
    room = canvas.height - 1
    for y, one in enumerate(pool.sessions[:room], start=1):
        if y == room and len(pool.sessions) > room:
            canvas.put(0, y, f"+{len(pool.sessions) - room + 1} classes", "onset")
            return
        back = None if one.alive is None or one.expired is None else one.alive + one.expired
        late = one.expired / back if back and one.expired is not None else None
        texts = {
            "ACTIVE": text_of(one.active, "", none),
            "IDLE": text_of(one.idle, "", none),
            "HELD": text_of(one.blocks, "", none),
            "TTL": none if one.ttl_s is None else age(one.ttl_s),
            "LATE": text_of(late, "ratio", none).replace(" ", ""),
        }
        canvas.put(0, y, one.name, "text", width=name_width - 1)
        x = name_width
        for head, width in columns:
            x += width
            canvas.right(x, y, texts[head], "warn" if late and head == "LATE" else "value")


def _columns(width: int, longest: int) -> list[tuple[str, int]]:
    """The columns that leave room for the longest name of a class."""
    columns = list(_COLUMNS)
    for head in _DISPENSABLE:
        if width - sum(taken for _, taken in columns) > longest:
            break
        columns = [column for column in columns if column[0] != head]
    return columns
