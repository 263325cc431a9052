"""The table of engines: one row each, the fleet on top, as many columns as fit."""

from __future__ import annotations

from dataclasses import dataclass

from tui.draw import chart
from tui.draw.canvas import Canvas, width_of
from tui.draw.tiles import alarming, concerns, style_of
from tui.look import Look, ordered
from tui.panels import BY_NAME, Draw, Of
from tui.quantity import age, text_of
from tui.reading import EntityReading, State
from tui.snapshot import Snapshot, SourceView

_STATE_WIDTH = 13
_SPARK_WIDTH = 16


@dataclass(frozen=True, slots=True)
class Column:
    """A panel as a column; ``spark`` draws its history instead of its number."""

    panel: str
    width: int
    spark: bool = False

    @property
    def head(self) -> str:
        return BY_NAME[self.panel].short if not self.spark else f"{BY_NAME[self.panel].short} over time"


# In the order in which they are given room; drawn in the order of `_ORDER`.
COLUMNS: tuple[Column, ...] = (
    Column("kv:pool_usage_ratio", 13),
    Column("kv:requests_waiting", 5),
    Column("kv:requests_running", 5),
    Column("kv:ttft_seconds:p99", 7),
    Column("kv:prefix_hit_ratio", 7),
    Column("kv:preemptions:rate", 8),
    Column("kv:operations:rate", 8),
    Column("kv:operation_seconds:p99", 7),
    Column("kv:lookup_hit_ratio", 7),
    Column("kv:operations_inflight", 5),
    Column("kv:busy_seconds:rate", 7),
    Column("kv:evicted_blocks:rate", 8),
    Column("kv:put_refusals:rate", 8),
    Column("kv:tail_waste_ratio", 7),
    Column("kv:sessions", 6),
    Column("kv:wal_flush_seconds:p99", 8),
    Column("kv:read_bytes:rate", 9),
    Column("kv:pool_largest_free_run_blocks", 6),
    Column("kv:generation_tokens:rate", 8),
    Column("kv:inter_token_seconds:p99", 7),
    Column("kv:pool_usage_ratio", _SPARK_WIDTH, spark=True),
    Column("kv:prompt_tokens:rate", 8),
    Column("kv:queue_seconds:p99", 7),
    Column("kv:pool_tokens", 7),
    Column("kv:restarts", 4),
    Column("kv:ttft_seconds:p50", 7),
    Column("kv:transfer_bytes_sum:rate", 9),
    Column("kv:external_prefix_hit_ratio", 7),
    Column("kv:transfer_expired:rate", 8),
    Column("kv:transfer_failures:rate", 8),
    Column("kv:offload_load_bytes:rate", 9),
    Column("kv:offload_store_bytes:rate", 9),
    Column("kv:inter_token_seconds:p50", 7),
)
_ORDER = list(BY_NAME)


def fitting(width: int, name_width: int, shot: Snapshot) -> list[Column]:
    """The columns that fit beside the name and the state; those that no engine has are left out."""
    room = width - 2 - name_width - _STATE_WIDTH
    kept: list[Column] = []
    first = len(_ALWAYS)
    for column in (*COLUMNS[:first], *sorted(COLUMNS[first:], key=lambda c: not alarming(c.panel, shot.fleet))):
        reading = shot.fleet.values.get(column.panel)
        if reading is None and (shot.rows or BY_NAME[column.panel].of is Of.SHARD):
            continue
        if reading is not None and reading.state is State.UNSUPPORTED and column.panel not in _ALWAYS:
            continue
        if column.width + 1 > room:
            continue
        room -= column.width + 1
        kept.append(column)
    return sorted(kept, key=lambda c: (_ORDER.index(c.panel), c.spark))


_ALWAYS = frozenset(column.panel for column in COLUMNS[:6])


def name_room(width: int, shot: Snapshot) -> int:
    """Cells for an engine's name, and where there is room its model's."""
    names = [width_of(row.name) + 2 for row in shot.rows]
    if width < 110:
        return min(max([14, *names]), 19)
    models = [width_of(row.name) + width_of(row.labels.get("model_name", "")) + 3 for row in shot.rows]
    return min(max([14, *models]), 38)


def draw(canvas: Canvas, shot: Snapshot, look: Look) -> None:
    """Head, fleet, engines; scrolled so that the selected row is seen, with a word on what is hidden."""
    if canvas.height < 2:
        return
    lines, silent = table_rows(shot, look), silent_targets(shot)
    name_width = name_room(canvas.width, shot)
    columns = fitting(canvas.width, name_width, shot)
    pinned = 1 if len(shot.rows) > 1 else 0
    index = chosen_place(shot, look)
    room, total = canvas.height - 1 - pinned, len(lines) + len(silent) - pinned
    first = max(0, min(index - pinned - room // 2, total - room))
    _head(canvas, columns, name_width, look, _heading(shot, name_width), scrolled=total > room)
    places = [*range(pinned), *range(first + pinned, min(first + room, total) + pinned)]
    for y, place in enumerate(places, start=1):
        if place < len(lines):
            canvas.hit(f"app.select_row({place})", 0, y)
            _row(canvas, y, lines[place], columns, name_width, shot, look, chosen=place == index)
        else:
            canvas.hit(f"app.select_row({place})", 0, y)
            _silent_row(canvas, y, silent[place - len(lines)], chosen=place == index)
    if total > room:
        hidden = f" {first} {canvas.glyphs.up} {total - room - first} {canvas.glyphs.down} "
        canvas.right(canvas.width, 0, hidden, "onset")
    if not lines and not silent:
        canvas.put(2, 1, "no engine seen yet", "muted")


def table_rows(shot: Snapshot, look: Look) -> list[EntityReading]:
    """The rows in order: the fleet first when it is more than one engine."""
    rows = ordered(shot, look)
    return [shot.fleet, *rows] if len(rows) > 1 else rows


def chosen_place(shot: Snapshot, look: Look) -> int:
    """The selected line of the table, the targets without a row included; the first when it is gone."""
    lines = table_rows(shot, look)
    silent = [source.target for source in silent_targets(shot)]
    if look.silent in silent:
        return len(lines) + silent.index(look.silent)
    return next((i for i, row in enumerate(lines) if row.key is look.entity), 0)


def silent_targets(shot: Snapshot) -> list[SourceView]:
    """Targets that have a fault and no row."""
    shown = {row.labels.get("instance", "") for row in shot.rows}
    return [s for s in shot.sources if not s.ok and not shown.intersection(s.instances)]


def _head(canvas: Canvas, columns: list[Column], name_width: int, look: Look, title: str, *, scrolled: bool) -> None:
    canvas.put(0, 0, " " * canvas.width, "head")
    canvas.put(2, 0, title, "head")
    canvas.hit("app.sort_by('')", 2, 0, name_width)
    x = 2 + name_width
    for column in columns:
        text = column.head + (canvas.glyphs.down if look.sort == column.panel and not column.spark else "")
        style = "strong" if look.panel == column.panel and not column.spark else "head"
        if column.spark or BY_NAME[column.panel].draw is Draw.BAR:
            canvas.put(x, 0, text, style, width=column.width)
        else:
            canvas.right(x + column.width, 0, text[: column.width], style)
        canvas.hit(f"app.sort_by('{column.panel}')", x, 0, column.width)
        x += column.width + 1
    if not scrolled:
        canvas.put(x + 1, 0, "STATE", "head", width=_STATE_WIDTH)


def _heading(shot: Snapshot, name_width: int) -> str:
    shards = bool(shot.rows) and all(row.key.get("shard") for row in shot.rows)
    what = "SHARD" if shards else "ENGINE"
    return what if name_width < 20 else f"{what} AND MODEL"


def _row(
    canvas: Canvas,
    y: int,
    row: EntityReading,
    columns: list[Column],
    name_width: int,
    shot: Snapshot,
    look: Look,
    chosen: bool,
) -> None:
    key = row.key
    found = [f for f in (shot.diagnosis.findings if shot.diagnosis else ()) if key and concerns(f, key)]
    name = row.name if key else f"fleet ({len(shot.rows)})"
    canvas.put(
        0, y, canvas.glyphs.bad if found else (canvas.glyphs.mark if chosen else " "), "bad" if found else "text"
    )
    x = canvas.put(2, y, name, "strong" if found or chosen or not key else "text", width=name_width - 1)
    model = row.labels.get("model_name", "")
    if model and x + 2 < name_width:
        canvas.put(x + 1, y, model, "muted", width=name_width - x)
    x = 2 + name_width
    for column in columns:
        _cell(canvas, x, y, column, row, shot)
        x += column.width + 1
    _state(canvas, x + 1, y, row, shot)
    if chosen:
        canvas.tint(y, "select")
        _point(canvas, y, columns, name_width, row, look)


def _point(canvas: Canvas, y: int, columns: list[Column], name_width: int, row: EntityReading, look: Look) -> None:
    """Mark the selected number of the selected row."""
    x = 2 + name_width
    for column in columns:
        if column.panel == look.panel and not column.spark:
            canvas.right(x + column.width, y, _text(canvas, column, row), "select_cell")
        x += column.width + 1


def _text(canvas: Canvas, column: Column, row: EntityReading) -> str:
    reading, panel = row.values.get(column.panel), BY_NAME[column.panel]
    text = text_of(None if reading is None else reading.value, panel.unit, canvas.glyphs.none)
    return f"{text:>6}" if panel.draw is Draw.BAR else text[: column.width]


def _cell(canvas: Canvas, x: int, y: int, column: Column, row: EntityReading, shot: Snapshot) -> None:
    panel, reading = BY_NAME[column.panel], row.values.get(column.panel)
    if column.spark:
        trail = shot.trail(column.panel, row.key)
        values = trail.columns(shot.time_ms - shot.span_ms, shot.time_ms, column.width)
        chart.area(canvas.area(x, y, column.width, 1), values, 1.0)
        return
    style = style_of(panel, reading, "text")
    if panel.draw is Draw.BAR:
        plain = {"bad": "chart_bad", "warn": "chart_warn", "stale": "muted"}.get(style, "data")
        chart.bar(canvas, x, y, column.width - 7, None if reading is None else reading.value, plain)
    canvas.right(x + column.width, y, _text(canvas, column, row), style)


def _state(canvas: Canvas, x: int, y: int, row: EntityReading, shot: Snapshot) -> None:
    """The row's standing in a word: the worst of its values' states that have to do with time."""
    states = {reading.state for reading in row.values.values()}
    silent = sum(other.stale for other in shot.rows) if not row.key else 0
    ages = [reading.age_s for reading in row.values.values() if reading.age_s is not None]
    glyphs = canvas.glyphs
    if silent:
        text, style = f"{glyphs.stale} {silent} silent", "warn"
    elif State.STALE in states:
        text, style = f"{glyphs.stale} stale {age(max(ages)) if ages else ''}".rstrip(), "warn"
    elif State.NO_PERMISSION in states:
        text, style = f"{glyphs.unknown} permission", "warn"
    elif State.RESET in states:
        text, style = f"{glyphs.stale} reset", "warn"
    elif State.FRESH in states:
        text, style = f"{glyphs.live} fresh", "ok"
    else:
        text, style = f"{glyphs.none} no data", "muted"
    canvas.put(x, y, text, style, width=_STATE_WIDTH)


def _silent_row(canvas: Canvas, y: int, source: SourceView, *, chosen: bool) -> None:
    x = canvas.put(0, y, f"{canvas.glyphs.unknown} ", "warn")
    x = canvas.put(x, y, source.title, "strong" if chosen else "muted", width=40)
    canvas.put(x + 1, y, f"{source.state}: {source.error}" if source.error else source.state, "warn")
    if chosen:
        canvas.tint(y, "select")


def columns_shown(width: int, shot: Snapshot) -> list[str]:
    """The panels of the columns on screen, left to right: what the column keys walk over."""
    return [c.panel for c in fitting(width, name_room(width, shot), shot) if not c.spark]
