"""``kvtop lab list|run|score``: provoke one fault in a real store, watch it, and see whether the diagnosis is right."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tui.commands import EXIT_FINDING, EXIT_NOTHING, EXIT_OK, CommandError
from tui.commands.errors import plain_errors
from tui.commands.output import print_json, show
from tui.commands.when import duration_option

if TYPE_CHECKING:
    from playbooks.lab.live.plan import Scenario
    from playbooks.lab.live.rig import Outcome, Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "run", "score"), metavar="list|run|score")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="run: one; score: some (default: all)")
    parser.add_argument("--level", type=int, choices=(0, 1, 2, 3), default=2, help="0 no fault, 1 mild, 2, 3 severe")
    parser.add_argument("--seed", type=int, default=0, help="picks the shard or the session class (default 0)")
    parser.add_argument("--seeds", type=int, default=3, help="score: so many seeds each, from 0 (default 3)")
    parser.add_argument(
        "--for", dest="for_ms", metavar="DUR", type=duration_option, help="how long (default: 2m or 3m)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="run: keep the recording (OpenMetrics)")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.epilog = (
        "A store of four shards is started on loopback, with clients at work; all of it ends with the command.\n"
        "Needs the extra `store`. exit codes of run: as of `kvtop diagnose`; of score: 0 all right, 1 some wrong"
    )


def run(args: argparse.Namespace) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)  # the store must not outlive us
    with _store_errors(), plain_errors():
        return {"list": _list, "run": _run, "score": _score}[args.action](args)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("grpc", "xxhash", "prometheus_client"):
            raise
        raise CommandError(
            f"the lab starts a store, which needs {error.name}: pip install '.[store]' in kvscope's checkout",
            EXIT_NOTHING,
        ) from None
    except Exception as error:
        if type(error).__module__ != "kvstore.errors":
            raise
        raise CommandError(f"the lab's store: {error}", EXIT_NOTHING) from None


def _scenarios() -> dict[str, Scenario]:
    from playbooks.lab.live import scenes, scenes_decode, scenes_nixl  # noqa: F401 - they register theirs
    from playbooks.lab.live.plan import SCENARIOS

    return SCENARIOS


def _known(name: str) -> Scenario:
    scenarios = _scenarios()
    if name not in scenarios:
        import difflib

        near = difflib.get_close_matches(name, scenarios, n=1)
        hint = f"did you mean {near[0]}?" if near else "`kvtop lab list` lists them"
        raise CommandError(f"lab: there is no scenario {name!r}; {hint}")
    return scenarios[name]


def _list(args: argparse.Namespace) -> int:
    from playbooks.lab.live.host import why_not
    from tui.commands.table import table

    if args.scenarios:
        raise CommandError(f"lab list takes no scenario, not {args.scenarios[0]!r}: it lists them all")

    rows = [(one.name, why_not(one), one.stand_in, one.says) for one in _scenarios().values()]
    if args.json:
        print_json(
            [{"name": name, "says": says, "skipped": skip, "stand_in": stand_in} for name, skip, stand_in, says in rows]
        )
        return EXIT_OK
    shown = [(name, "skipped" if skip else "ready", "; ".join(filter(None, (says, stand_in, skip))))
             for name, skip, stand_in, says in rows]  # fmt: skip
    show(table(("SCENARIO", "HERE", "WHAT"), shown))
    return EXIT_OK


def _run(args: argparse.Namespace) -> int:
    from playbooks.lab.live.score import as_json
    from playbooks.report import as_json as diagnosis_json
    from playbooks.report import as_text

    if len(args.scenarios) != 1:
        raise CommandError("lab run: which scenario? `kvtop lab list` lists them")
    if args.output is not None:
        if args.output.exists():
            raise CommandError(f"{args.output}: is there already; name another file")
        if not args.output.parent.is_dir():
            raise CommandError(f"{args.output}: there is no directory {args.output.parent}")
    outcome = _rehearsed(args, _known(args.scenarios[0]), args.seed)
    if args.json:
        print_json({**as_json(outcome), "diagnosis": diagnosis_json(outcome.diagnosis)})
    else:
        show(as_text(outcome.diagnosis))
        show("")
        if outcome.stand_in:
            show(f"stand-in: {outcome.stand_in}")
        show(_verdict_line(outcome))
    return outcome.diagnosis.exit_code()


def _score(args: argparse.Namespace) -> int:
    from playbooks.lab.live.host import why_not
    from playbooks.lab.live.score import as_json

    if args.seeds < 1:
        raise CommandError(f"lab score: --seeds must be at least 1, not {args.seeds}")
    if args.output is not None:
        raise CommandError("lab score keeps no recording: `kvtop lab run` does (-o FILE)")
    chosen = [_known(name) for name in args.scenarios] or list(_scenarios().values())
    rows, wrong = [], 0
    for scenario in chosen:
        if reason := why_not(scenario):
            show(f"{scenario.name}: skipped, {reason}") if not args.json else None
            continue
        for seed in range(args.seeds):
            outcome = _rehearsed(args, scenario, seed)
            row = as_json(outcome)
            wrong += not (row["cause_right"] and row["member_right"])
            rows.append(row)
            if not args.json:
                show(f"{scenario.name} level {args.level} seed {seed}: {_verdict_line(outcome)}")
    if args.json:
        print_json({"runs": rows, "wrong": wrong})
    else:
        show(f"{len(rows)} runs, {wrong} wrong")
    return EXIT_FINDING if wrong else EXIT_OK


def _rehearsed(args: argparse.Namespace, scenario: Scenario, seed: int) -> Outcome:
    from playbooks.lab.live.host import why_not
    from playbooks.lab.live.rig import rehearse

    if reason := why_not(scenario):
        raise CommandError(f"{scenario.name} cannot be run here: {reason}", EXIT_NOTHING)
    seconds = args.for_ms / 1000 if args.for_ms else None
    progress = _progress(scenario.name) if sys.stderr.isatty() else None
    try:
        return rehearse(scenario, args.level, seed, seconds=seconds, recording=args.output, progress=progress)
    finally:
        if progress:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _progress(name: str) -> Progress:
    def told(seconds: float, what: str) -> None:
        print(f"\r\x1b[K{name}: {seconds:.0f} s, {what} (Ctrl-C ends it)", end="", file=sys.stderr, flush=True)

    return told


def _verdict_line(outcome: Outcome) -> str:
    from playbooks.lab.live.score import score

    result = score(outcome)
    truth = outcome.truth
    member = json.dumps(dict(truth.member)) if truth.member else ""
    said = "right" if result.right else "wrong member" if result.cause else "wrong"
    return f"{said}: it was {truth.cause} {member}".rstrip() + f"; said {result.says}"
