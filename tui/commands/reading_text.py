"""A reading as plain text: every number with its unit, every missing one with the reason why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from playbooks.printable import name_text, printable
from probes.sources.base import SourceStatus
from tui.commands.table import table
from tui.commands.when import duration_text, rfc3339
from tui.panels import Merge, Panel
from tui.quantity import age, clock, text_of
from tui.reading import EntityReading, Reading, State

DASH = "–"
WHY_CHARS = 500  # of an error's words; --json has them whole
_HUGE = 1e15  # a thousand T: nothing that is counted, moved or waited for here comes near
_CALENDAR_END_S = 253_402_300_800.0  # the year 10000
_HUGE_UNITS = {"seconds": "s", "bytes": "B", "bytes_per_second": "B/s", "per_second": "/s", "tokens_per_second": "/s"}
WIDE = 3  # from so many engines on, one line each instead of one block each
_LINE_PANELS = (
    "kv:pool_usage_ratio",
    "kv:requests_running",
    "kv:requests_waiting",
    "kv:preemptions:rate",
    "kv:prefix_hit_ratio",
    "kv:prompt_tokens:rate",
    "kv:generation_tokens:rate",
    "kv:ttft_seconds:p99",
    "kv:inter_token_seconds:p99",
)
_SHARD_PANELS = (
    "kv:pool_usage_ratio",
    "kv:lookup_hit_ratio",
    "kv:operations:rate",
    "kv:operation_seconds:p99",
    "kv:operations_inflight",
    "kv:busy_seconds:rate",
    "kv:put_refusals:rate",
    "kv:evicted_blocks:rate",
    "kv:tail_waste_ratio",
    "kv:pool_largest_free_run_blocks",
    "kv:sessions",
)
_GPU_COLUMNS = {
    "kv:gpu_utilization_ratio": "UTIL",
    "kv:gpu_engine_active_ratio": "ENGINE",
    "kv:gpu_tensor_active_ratio": "TENSOR",
    "kv:gpu_dram_active_ratio": "DRAM",
    "kv:gpu_power_watts": "WATTS",
    "kv:gpu_memory_used_bytes": "USED",
    "kv:gpu_memory_free_bytes": "FREE",
    "kv:gpu_xid_last": "XID",
}


def reading_text(
    at_ms: int,
    window_ms: int,
    readings: Sequence[EntityReading],
    panels: Sequence[Panel],
    sources: Sequence[SourceStatus],
) -> str:
    """The whole page of ``kvtop once``."""
    by_name = {panel.name: panel for panel in panels}
    parts = [f"{rfc3339(at_ms)}  window {duration_text(window_ms)}"]
    engines = [one for one in readings if _is_engine(one)]
    shards = [one for one in readings if one.labels.get("shard")]
    others = [one for one in readings if not _is_engine(one) and not one.labels.get("shard")]
    if not readings:
        parts.append("No reading: no target gave a series that an adapter knows.")
    if len(engines) >= WIDE:
        parts.append(_lines(engines, by_name))
    else:
        parts += [_block(one, by_name) for one in engines]
    if len(shards) >= WIDE:
        parts.append(_lines(shards, by_name, "SHARD", _SHARD_PANELS))
    else:
        parts += [_block(one, by_name) for one in shards]
    gpus = [one for one in others if one.labels.get("gpu")]
    if len(gpus) >= WIDE:
        parts.append(_gpu_lines(gpus))
        others = [one for one in others if not one.labels.get("gpu")]
    parts += [_block(one, by_name) for one in others]
    parts.append(_sources(sources, at_ms))
    return "\n\n".join(parts)


def _is_engine(one: EntityReading) -> bool:
    return not any(one.labels.get(name) for name in ("gpu", "device", "shard")) and bool(one.labels.get("system"))


def _title(one: EntityReading) -> str:
    about = [name_text(one.labels[name]) for name in ("system", "model_name") if one.labels.get(name)]
    return name_text(one.name) + (f"  {' · '.join(about)}" if about else "")


def _block(one: EntityReading, panels: Mapping[str, Panel]) -> str:
    rows: list[list[str]] = []
    raw: list[list[str]] = []
    missing: dict[str, list[str]] = {}
    for name, reading in one.values.items():
        panel = panels[name]
        if reading.value is None:
            missing.setdefault(_why_missing(reading), []).append(panel.title)
        else:
            as_exported = panel.merge is Merge.NONE
            (raw if as_exported else rows).append([panel.title, _number(name, reading), _state(reading)])
    width = max((len(row[0]) for row in [*rows, *raw]), default=0)
    parts = [_title(one), *_rows(rows, width)]
    if _is_engine(one) or one.labels.get("shard") or one.stale or not rows:
        parts += [folded(f"{why}: ", titles) for why, titles in missing.items()]
    if raw:
        heading = ["  as exported, counters since the process started:"] if rows else []
        parts += [*heading, *_rows(raw, width)]
    return "\n".join(parts)


def _why_missing(reading: Reading) -> str:
    if reading.state is State.UNSUPPORTED:
        return "unsupported here"  # its reason names the series: one for each panel
    return _state(reading)


def _rows(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    if not rows:
        return []
    return [table((), [[row[0].ljust(width), *row[1:]] for row in rows], right=(1,), indent="  ")]


def _number(name: str, reading: Reading) -> str:
    value = reading.value
    if value is None or not math.isfinite(value):
        return text_of(None, reading.unit)
    if name.endswith("_start_time_seconds"):
        return moment_text(value)
    if reading.unit == "flag":
        return "yes" if value else "no"
    return number_text(value, reading.unit)


def number_text(value: float, unit: str) -> str:
    """A value with its unit; beyond what any unit's own form is made for, three digits and the exponent."""
    if abs(value) < _HUGE:
        return text_of(value, unit)
    return f"{value:.3g} {_HUGE_UNITS.get(unit, '')}".rstrip()


def moment_text(seconds: float) -> str:
    """A wall clock time with its date; the bare number where no calendar reaches."""
    if 0 <= seconds < _CALENDAR_END_S:
        return clock(round(seconds * 1000), date=True)
    return f"{seconds:.3g} s, no date"


def folded(head: str, words: Sequence[str], width: int = 100) -> str:
    """A list of words on as many lines as they need."""
    lines, line = [], "  " + head
    for k, word in enumerate(words):
        piece = word + (", " if k + 1 < len(words) else "")
        if len(line) + len(piece) > width:
            lines.append(line.rstrip())
            line = "    "
        line += piece
    return "\n".join([*lines, line])


def _state(reading: Reading) -> str:
    if reading.state is State.FRESH:
        return ""
    words = str(reading.state.value).replace("-", " ")
    if reading.state is State.STALE:
        words += "" if reading.age_s is None else f", {age(reading.age_s)} old"
    return words + (f": {printable(reading.why, WHY_CHARS)}" if reading.why else "")


def _lines(
    engines: Sequence[EntityReading],
    panels: Mapping[str, Panel],
    head: str = "ENGINE",
    wanted: Sequence[str] = _LINE_PANELS,
) -> str:
    shown = [name for name in wanted if name in panels and any(name in one.values for one in engines)]
    rows = [[name_text(one.name), *(_cell(one.values.get(name)) for name in shown)] for one in engines]
    text = table([head, *(panels[name].short for name in shown)], rows, right=range(1, len(shown) + 1))
    reasons = {
        f"{panels[name].title}: {_state(one.values[name])}"
        for one in engines
        for name in shown
        if name in one.values and one.values[name].value is None
    }
    # The reason names its instance; with many engines one example of each kind says enough.
    examples = {reason.split(":")[0]: reason for reason in sorted(reasons)}
    return "\n".join([text, *(f"  {DASH} {reason}" for reason in examples.values())])


def _gpu_lines(gpus: Sequence[EntityReading]) -> str:
    shown = [name for name in _GPU_COLUMNS if any(name in one.values for one in gpus)]
    rows = [[name_text(one.name), *(_cell(one.values.get(name)) for name in shown)] for one in gpus]
    return table(["GPU", *(_GPU_COLUMNS[name] for name in shown)], rows, right=range(1, len(shown) + 1))


def _cell(reading: Reading | None) -> str:
    if reading is None or reading.value is None or not math.isfinite(reading.value):
        return DASH
    return number_text(reading.value, reading.unit) + ("*" if reading.state in (State.STALE, State.RESET) else "")


def _sources(sources: Sequence[SourceStatus], at_ms: int) -> str:
    return "Sources\n" + table((), [source_row(one, at_ms) for one in sources], indent="  ")


def source_row(one: SourceStatus, at_ms: int) -> list[str]:
    """Target, state, what it brought or what is wrong with it."""
    if one.error:
        last = one.age_s(at_ms)
        says = printable(one.error, WHY_CHARS) + (f" (last data {age(last)} ago)" if last is not None else "")
    else:
        says = f"{one.samples:,} samples" + (f" in {text_of(one.duration_s, 'seconds')}" if one.duration_s else "")
    if one.detail:
        says += f" · {printable(one.detail, WHY_CHARS)}"
    return [name_text(one.target), one.state, says]
