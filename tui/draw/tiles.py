"""Tiles: the numbers of the selected engine (or of the fleet) over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probes.labels import Labels
from tui.draw import chart
from tui.draw.canvas import Canvas, width_of
from tui.draw.prose import wrapped
from tui.look import Look, selected
from tui.panels import BY_NAME, Draw, Of, Panel
from tui.quantity import age, clock, text_of
from tui.reading import EntityReading, Reading, State, kind_of
from tui.snapshot import Snapshot

if TYPE_CHECKING:
    from playbooks.verdict import Finding

_DEAD = (State.UNSUPPORTED, State.NO_PERMISSION)
MIN_WIDTH = 19
MIN_HEIGHT = 4


@dataclass(frozen=True, slots=True)
class Tile:
    """``main`` is drawn large and charted; ``also`` are (word, panel) pairs beside it."""

    title: str
    main: str
    also: tuple[tuple[str, str], ...] = ()
    word: str = ""


TILES: tuple[Tile, ...] = (
    Tile("Pool in use", "kv:pool_usage_ratio", (("of", "kv:pool_tokens"),)),
    Tile("Waiting", "kv:requests_waiting", (("run", "kv:requests_running"),), "waiting"),
    Tile("Prefix hits", "kv:prefix_hit_ratio", (("ext", "kv:external_prefix_hit_ratio"),)),
    Tile("TTFT p99", "kv:ttft_seconds:p99", (("p50", "kv:ttft_seconds:p50"),)),
    Tile("Preemptions", "kv:preemptions:rate", (("rst", "kv:restarts"),)),
    Tile("Tokens generated", "kv:generation_tokens:rate", (("in", "kv:prompt_tokens:rate"),)),
    Tile("Blocks found", "kv:lookup_hit_ratio"),
    Tile("Operations", "kv:operations:rate", (("in flight", "kv:operations_inflight"),)),
    Tile("Operation p99", "kv:operation_seconds:p99", (("busy", "kv:busy_seconds:rate"),)),
    Tile("Evictions", "kv:evicted_blocks:rate", (("refused", "kv:put_refusals:rate"),)),
    Tile("Tail waste", "kv:tail_waste_ratio", (("run", "kv:pool_largest_free_run_blocks"),)),
    Tile("Sessions", "kv:sessions"),
    Tile("Log flush p99", "kv:wal_flush_seconds:p99"),
    Tile("One-sided reads", "kv:read_bytes:rate"),
    Tile("Queue time p99", "kv:queue_seconds:p99"),
    Tile("ITL p99", "kv:inter_token_seconds:p99", (("p50", "kv:inter_token_seconds:p50"),)),
    Tile("KV transfers", "kv:transfer_bytes_sum:rate", (("p99", "kv:transfer_seconds:p99"),)),
    Tile("Transfer faults", "kv:transfer_failures:rate", (("expired", "kv:transfer_expired:rate"),)),
    Tile("Offload loads", "kv:offload_load_bytes:rate", (("store", "kv:offload_store_bytes:rate"),)),
)


def dead(tile: Tile, shot: Snapshot) -> bool:
    """Whether no engine can have the tile's number."""
    reading = shot.fleet.values.get(tile.main)
    return reading is not None and reading.state in _DEAD


def in_order(shot: Snapshot) -> list[Tile]:
    """The tiles that the fleet has numbers for; those without any come last, and fill what room is left."""
    mine = [tile for tile in TILES if _concern(tile, shot)]
    return [tile for tile in mine if not dead(tile, shot)] + [tile for tile in mine if dead(tile, shot)]


def _concern(tile: Tile, shot: Snapshot) -> bool:
    """Whether anybody here is of the kind that has the tile's number; of nobody, an engine's are shown."""
    kinds = {kind_of(row.key) for row in shot.rows} - {None} or {Of.ENGINE}
    return BY_NAME[tile.main].of in (*kinds, Of.BOTH)


def shape(width: int, height: int, wanted: int) -> tuple[int, int]:
    """Columns and rows of tiles that fit, for so many tiles."""
    columns = max(1, min(width // (MIN_WIDTH if width < 110 else 27), 6))
    rows = max(1, min(height // (MIN_HEIGHT if height < 16 else 6), -(-wanted // columns)))
    return columns, rows


def draw(canvas: Canvas, shot: Snapshot, look: Look) -> None:
    """Fill the canvas with tiles of equal size; large ones get a frame."""
    tiles = in_order(shot)
    columns, rows = shape(canvas.width, canvas.height, sum(not dead(tile, shot) for tile in tiles))
    high = canvas.height // rows
    who = selected(shot, look)
    onset = onset_of(shot, who.key)
    for index, tile in enumerate(_kept(tiles, columns * rows, who)):
        row, column = divmod(index, columns)
        left, right = canvas.width * column // columns, canvas.width * (column + 1) // columns
        part = canvas.area(left, row * high, right - left, high)
        part.hit(f"app.explain('{tile.main}')", 0, 0, part.width, part.height)
        _tile(part, tile, shot, who, look, onset)


def _kept(tiles: list[Tile], room: int, who: EntityReading) -> list[Tile]:
    """As many as there is room for; a tile with an alarm takes the place of the last one without."""

    def alarms(tile: Tile) -> bool:
        return any(alarming(name, who) for name in (tile.main, *(name for _, name in tile.also)))

    kept, cut = tiles[:room], [tile for tile in tiles[room:] if alarms(tile)]
    for index in reversed(range(len(kept))):
        if cut and not alarms(kept[index]):
            kept[index] = cut.pop()
    return kept


def onset_of(shot: Snapshot, entity: Labels) -> int | None:
    """When the first finding that concerns the entity began (for the fleet: any finding)."""
    findings: Sequence[Finding] = shot.diagnosis.findings if shot.diagnosis else ()
    for finding in findings:
        if finding.onset_ms is not None and (not entity or concerns(finding, entity)):
            return finding.onset_ms
    return None


def concerns(finding: Finding, entity: Labels) -> bool:
    """Whether the finding's member is this entity or holds it."""
    member = {k: v for k, v in finding.member.items() if k in ("instance", "engine", "gpu", "device", "shard")}
    return bool(member) and entity.covers({k: v for k, v in member.items() if entity.get(k) or k == "instance"})


def style_of(panel: Panel, reading: Reading | None, plain: str = "value") -> str:
    """The style of a number: by its state first, then by its threshold."""
    if reading is None or reading.value is None:
        return "muted"
    if reading.state is State.STALE:
        return "stale"
    if panel.bad is not None and reading.value >= panel.bad:
        return "bad"
    if panel.warn is not None and reading.value >= panel.warn:
        return "warn"
    return plain


def _tile(canvas: Canvas, tile: Tile, shot: Snapshot, who: EntityReading, look: Look, onset: int | None) -> None:
    panel, reading = BY_NAME[tile.main], who.values.get(tile.main)
    picked = look.panel == tile.main
    if canvas.height >= 6 and canvas.width >= 24:
        inside = canvas.frame(tile.title, "data" if picked else "faint", "strong" if picked else "title")
        inside = inside.area(1, 0, inside.width - 2, inside.height)
    else:
        inside = canvas.area(1, 0, canvas.width - 2, canvas.height)
        inside.put(0, 0, tile.title, "strong" if picked else "title")
        inside = inside.area(0, 1, inside.width, inside.height - 1)
    style = style_of(panel, reading)
    chart_top = 1
    if reading is None or reading.value is None:
        said = _reason(inside, reading)
        if any(start_of(shot) <= time <= shot.time_ms and value == value for time, value in _points(shot, tile, who)):
            _history(inside.area(0, said, inside.width, inside.height - said), tile, shot, who, onset)
        return
    if panel.draw is Draw.BAR and inside.height >= 3:
        plain = {"bad": "chart_bad", "warn": "chart_warn", "stale": "muted"}.get(style, "data")
        chart.bar(inside, 0, 1, inside.width, reading.value, plain)
        chart_top = 2
    _history(inside.area(0, chart_top, inside.width, inside.height - chart_top), tile, shot, who, onset)
    _headline(inside, tile, who, reading, style)


def start_of(shot: Snapshot) -> int:
    """Where the charts begin (ms)."""
    return shot.time_ms - shot.span_ms


def _points(shot: Snapshot, tile: Tile, who: EntityReading) -> Iterator[tuple[int, float]]:
    trail = shot.trail(tile.main, who.key)
    return zip(trail.times, trail.values, strict=True)


def _reason(canvas: Canvas, reading: Reading | None) -> int:
    """Why there is no number; returns how many lines that took."""
    state = reading.state.value if reading else State.NOT_YET_SEEN.value
    canvas.put(0, 0, f"{canvas.glyphs.none} {state}", "muted", width=canvas.width)
    if reading is None or canvas.height < 4:
        return 1
    lines = list(wrapped(reading.why, canvas.width, "muted"))
    for y, line in enumerate(lines, start=1):
        canvas.put(0, y, line[-1][0], "muted", width=canvas.width)
    return 1 + len(lines)


def _headline(canvas: Canvas, tile: Tile, who: EntityReading, reading: Reading, style: str) -> None:
    """The number, its state where it is not fresh, and the numbers beside it as far as they fit."""
    panel = BY_NAME[tile.main]
    x = canvas.put(0, 0, text_of(reading.value, panel.unit), style)
    if tile.word:
        x = canvas.put(x + 1, 0, tile.word, "muted") if x + 1 + len(tile.word) <= canvas.width else x
    if reading.state is State.STALE:
        old = "" if reading.age_s is None else age(reading.age_s)
        canvas.right(canvas.width, 0, f"{canvas.glyphs.stale}{old}", "stale")
        return
    for word, name in tile.also:
        beside = who.values.get(name)
        if beside is None or beside.value is None:
            continue
        text = f"{word} {text_of(beside.value, BY_NAME[name].unit)}"
        if x + 1 + width_of(text) <= canvas.width:
            canvas.right(canvas.width, 0, text, style_of(BY_NAME[name], beside, "muted"))


def alarming(panel: str, row: EntityReading) -> bool:
    """Whether a number is at or beyond its threshold."""
    return style_of(BY_NAME[panel], row.values.get(panel)) in ("warn", "bad")


def _history(canvas: Canvas, tile: Tile, shot: Snapshot, who: EntityReading, onset: int | None) -> None:
    if canvas.height < 1 or canvas.width < 2:
        return
    trail = shot.trail(tile.main, who.key)
    start, end = start_of(shot), shot.time_ms
    axis = canvas.height >= 3
    plot = canvas.area(0, 0, canvas.width, canvas.height - (1 if axis else 0))
    low = tile.main in ("kv:prefix_hit_ratio", "kv:external_prefix_hit_ratio")
    values = trail.columns(start, end, plot.width, low=low)
    ratio = BY_NAME[tile.main].unit == "ratio"
    top = 1.0 if ratio else chart.nice_top(values)
    at = None
    if onset is not None and start <= onset <= end:
        at = min(plot.width - 1, (onset - start) * plot.width // max(1, shot.span_ms))
    chart.area(plot, values, top, "data", at)
    if axis:
        _axis(canvas, shot, top, BY_NAME[tile.main].unit, at, onset)


def _span(span_ms: int) -> str:
    return f"{span_ms // 60_000}m" if span_ms % 60_000 == 0 else age(span_ms / 1000)


def _axis(canvas: Canvas, shot: Snapshot, top: float, unit: str, at: int | None, onset: int | None) -> None:
    y = canvas.height - 1
    canvas.rule(y, "faint")
    begin = canvas.put(0, y, f"{canvas.glyphs.minus}{_span(shot.span_ms)}", "faint")
    end = canvas.right(canvas.width, y, f"max {text_of(top, unit)}", "faint")
    if at is not None and onset is not None:
        mark = f"{canvas.glyphs.up}{clock(onset)}"
        for text in (mark, canvas.glyphs.up):
            if begin < at and at + len(text) < end:
                canvas.put(at, y, text, "onset")
                break
