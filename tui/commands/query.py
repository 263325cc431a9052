"""``kvtop query``: PromQL over live or recorded series."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tui.commands import EXIT_OK, CommandError
from tui.commands.errors import plain_errors
from tui.commands.session import Session, add_target_arguments, attached, collect, nothing, reach_ms, told_idle
from tui.commands.when import duration_option, duration_text, moment_option, rfc3339
from tui.windows import stretches

if TYPE_CHECKING:
    from probes.promql.ast import Expr

_SAME_LENGTH = "000001m"  # stands for $window while a broken expression is looked for, so that columns stay true
_ONE_SCRAPE = "one scrape has no rate; add --for 30s"
_MAX_STEPS = 11_000  # Prometheus' own limit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("expr", metavar="EXPR", help="PromQL; canonical kv:* names are expanded, $window is filled in")
    add_target_arguments(parser)
    parser.add_argument(
        "--time", "--at", dest="time", metavar="T", type=moment_option, help="instant (default: the end of the data)"
    )
    parser.add_argument("--start", metavar="T", type=moment_option, help="range query from here")
    parser.add_argument("--end", metavar="T", type=moment_option, help="… to here (default: the end of the data)")
    parser.add_argument(
        "--step", metavar="DUR", type=duration_option, help="… at this distance (default: about 60 steps)"
    )
    parser.add_argument(
        "--for", dest="for_ms", metavar="DUR", type=duration_option, default=0, help="collect for so long"
    )
    parser.add_argument("--json", action="store_true", help='what Prometheus gives in "data"')
    parser.epilog = (
        "example: kvtop query 'rate(kv:generation_tokens_total[$window])' localhost:8000 --for 30s\n"
        "exit codes: 0 fine (an empty answer, too), 2 usage or expression, 4 nothing could be collected"
    )


def run(args: argparse.Namespace) -> int:
    from probes.promql.ast import VectorSelector, walk

    if args.time and (args.start or args.end or args.step):
        raise CommandError("--time asks for one instant; --start, --end and --step for a range: give one or the other")
    if not args.start and (args.end or args.step):
        raise CommandError("a range query needs --start")
    args.expr = args.expr.lstrip()
    expr = _parsed(args.expr)
    names = {node.name for node in walk(expr) if isinstance(node, VectorSelector) and node.name}
    with plain_errors():
        attachment = attached(args, lookback_ms=reach_ms(args.time, args.start, args.end), names=names)
        told_idle(attachment, args.for_ms)
        session = collect(attachment, args.for_ms)
        if session.empty:
            raise nothing(session)
        data = ask(session, args)
    short = _lacks_window(session, expr, data)
    if args.json:
        from tui.commands.output import print_json

        print_json(data)
        if short:
            print(f"kvtop: {_ONE_SCRAPE}", file=sys.stderr)
        return EXIT_OK
    from tui.commands.answer import as_text

    if _without_series(data):
        print(f"kvtop: no series: {_ONE_SCRAPE}" if short else f"kvtop: {as_text(data)}", file=sys.stderr)
    else:
        from tui.commands.output import show

        show(as_text(data))
    return EXIT_OK


def _without_series(data: dict[str, Any]) -> bool:
    return data["resultType"] in ("vector", "matrix") and not data["result"]


def _parsed(text: str) -> Expr:
    """A broken expression is refused here, before any target is asked."""
    from probes.promql.errors import PromQLError
    from probes.promql.parse import parse

    try:
        return parse(text.replace("$window", _SAME_LENGTH))
    except PromQLError as error:
        error.text = text
        raise CommandError(error.render(caret=True)) from None


def _lacks_window(session: Session, expr: Expr, data: dict[str, Any]) -> bool:
    """The answer is empty for want of a second scrape, not of the series."""
    from probes.promql.ast import MatrixSelector, Subquery, walk

    one_scrape = session.scraped and session.start_ms == session.end_ms
    ranged = any(isinstance(node, MatrixSelector | Subquery) for node in walk(expr))
    return one_scrape and ranged and _without_series(data)


def ask(session: Session, args: argparse.Namespace) -> dict[str, Any]:
    """The answer as Prometheus' ``data``."""
    from probes.promql.answer import to_prometheus_json

    if not args.start:
        at_ms = session.moment(args.time, "--time")
        found = session.view.instant(_filled(args.expr, session.window_at(at_ms)), at_ms)
        return to_prometheus_json(found, "instant", at_ms)
    end_ms = args.end.resolve(session.end_ms) if args.end else session.end_ms
    start_ms = args.start.resolve(session.end_ms)
    if start_ms > end_ms:
        raise CommandError("--start lies after --end")
    if end_ms < session.start_ms or start_ms > session.end_ms + session.interval_ms:
        raise CommandError(f"--start {rfc3339(start_ms)} to {rfc3339(end_ms)} lies outside: {session.held}")
    step_ms = args.step or _step(end_ms - start_ms, session.interval_ms)
    if (end_ms - start_ms) // step_ms > _MAX_STEPS:
        raise CommandError(f"more than {_MAX_STEPS:,} steps: give a longer --step")
    times = range(start_ms, end_ms + 1, step_ms)
    runs = [(session.longest_window_ms, times)]
    if "$window" in args.expr:
        runs = list(stretches(times, session.start_at(start_ms), session.interval_ms, session.longest_window_ms))
    return _joined(
        to_prometheus_json(session.view.range(_filled(args.expr, window), run[0], run[-1], step_ms), "range")
        for window, run in runs
    )


def _filled(expr: str, window_ms: int) -> str:
    return expr.replace("$window", duration_text(window_ms))


def _joined(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Answers over stretches of time, one after the other, as one."""
    rows: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    joined: dict[str, Any] = {}
    for joined in parts:
        for row in joined["result"]:
            known = rows.setdefault(tuple(sorted(row["metric"].items())), {**row, "values": []})
            known["values"] += row["values"]
    return {**joined, "result": [rows[key] for key in sorted(rows)]}


def _step(span_ms: int, interval_ms: int) -> int:
    """About sixty steps, a multiple of the sampling interval."""
    return max(1, -(-span_ms // (60 * interval_ms))) * interval_ms
