"""``kvtop once``: one reading of every target."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from tui.commands import EXIT_NOTHING, EXIT_OK
from tui.commands.errors import plain_errors
from tui.commands.session import Session, add_target_arguments, attached, collect, reach_ms, told_idle
from tui.commands.when import duration_option, moment_option

if TYPE_CHECKING:
    from probes.rules import RuleSet
    from probes.sources.base import SourceStatus
    from tui.panels import Panel
    from tui.reading import EntityReading

_CANONICAL = re.compile(r"\bkv:[a-zA-Z0-9_:]+")
_OF_THE_SCRAPE = ("kv:up", "kv:scrape")  # said of the source; a target that never answered has no readings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target_arguments(parser)
    parser.add_argument("--json", action="store_true", help="for machines (kvscope.reading/1)")
    parser.add_argument(
        "--for", dest="for_ms", metavar="DUR", type=duration_option, default=0, help="watch for so long"
    )
    parser.add_argument("--at", metavar="T", type=moment_option, help="of a recording: this moment (default its end)")
    parser.epilog = (
        "A live target is scraped once: rates and quantiles need a window and are `not yet seen`\n"
        "unless --for is given. exit codes: 0 fine, 2 usage, 4 nothing could be collected"
    )


def run(args: argparse.Namespace) -> int:
    with plain_errors():
        attachment = attached(args, lookback_ms=reach_ms(args.at))
        told_idle(attachment, args.for_ms)
        session = collect(attachment, args.for_ms)
        at_ms = session.moment(args.at, "--at")
    panels, readings = reading(session, at_ms)
    if args.json:
        from tui.commands.output import print_json
        from tui.reading import as_json

        print_json(
            {**as_json(at_ms, readings), "sources": [source_json(one, at_ms) for one in session.statuses_at(at_ms)]}
        )
    else:
        from tui.commands.output import show
        from tui.commands.reading_text import reading_text

        show(reading_text(at_ms, session.window_at(at_ms), readings, panels, session.statuses_at(at_ms)))
    return EXIT_NOTHING if session.empty else EXIT_OK


def reading(session: Session, at_ms: int) -> tuple[tuple[Panel, ...], list[EntityReading]]:
    """Every panel of every entity, and the raw gauges and counters beside them."""
    from tui.commands.seen import seen
    from tui.panels import PANELS, raw_panels
    from tui.reading import read

    rules = cast("RuleSet", session.view.rules)
    vocabulary = {
        entry.name: {"type": entry.type, "unit": entry.unit, "meaning": entry.meaning}
        for entry in rules.vocabulary
        if not entry.name.startswith(_OF_THE_SCRAPE)
    }
    needs = [need for panel in PANELS for need in panel.needs]
    known = seen(session.attachment.store, rules, [*needs, *vocabulary], at_ms)
    raw = raw_panels({name: entry for name, entry in vocabulary.items() if known[name]})
    faults = {one.instance: one.error or one.state for one in session.statuses if one.instance and not one.ok}
    panels = (*PANELS, *raw)
    of_one_scrape = session.end_ms == session.start_at(session.end_ms)
    asked = _answerable(panels, session, of_one_scrape)
    window_ms = session.window_at(at_ms)
    readings = read(
        session.view, at_ms, window_ms, panels, faults=faults, seen=known, asked=asked,
        start_ms=session.start_at(at_ms), cut=_cut(session),
    )  # fmt: skip
    if of_one_scrape:
        windowed = {panel.name for panel in panels if "[" in panel.expr}
        readings = [one if one.labels.get("instance") in faults else _of_one_scrape(one, windowed) for one in readings]
    return panels, readings


def _cut(session: Session) -> frozenset[str]:
    if not any(status.incomplete for status in session.statuses):
        return frozenset()
    from tui.source_views import cut_of, pages_of

    return cut_of(session.statuses, pages_of(session.attachment))


def _answerable(panels: Sequence[Panel], session: Session, of_one_scrape: bool) -> list[Panel]:
    """The panels that can have an answer: something behind them is in the store, and two samples where it takes two."""
    rules = cast("RuleSet", session.view.rules)
    there = {name for frame in session.attachment.store.frames for name in frame.names()}
    asked = []
    for panel in panels:
        behind = {source for name in _CANONICAL.findall(panel.expr) for source in (name, *rules.sources(name))}
        if behind & there and not (of_one_scrape and panel.windowed):
            asked.append(panel)
    return asked


def _of_one_scrape(one: EntityReading, windowed: set[str]) -> EntityReading:
    """One sample has no rate, no quantile over a window and no count of restarts: these are not yet seen."""
    from dataclasses import replace

    from tui.reading import Reading, State

    values = {}
    for name, value in one.values.items():
        if name in windowed and value.state in (State.FRESH, State.GAP, State.NOT_YET_SEEN):
            value = Reading(None, value.unit, State.NOT_YET_SEEN, None, "needs a window (--for 30s)")
        values[name] = value
    return replace(one, values=values)


def source_json(one: SourceStatus, at_ms: int) -> dict[str, object]:
    """A source as the diagnosis' JSON has it, too."""
    return {"target": one.target, "state": one.state, "age_s": one.age_s(at_ms), "error": one.error}
