"""Headless attachment: collect for a while (or load what was recorded), then there is a view to ask."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from playbooks.printable import name_text, printable
from probes.records import dataclass
from probes.sources.base import SourceStatus
from tui.commands import EXIT_NOTHING, CommandError
from tui.commands.when import Moment, duration_option, duration_text, rfc3339

if TYPE_CHECKING:
    from playbooks.objective import Objective
    from probes.attach import Attachment
    from probes.view import View

MIN_WINDOW_MS = 60_000
HISTORY_MS = 15 * 60_000  # of a Prometheus server, when nothing else is asked for
TIMEOUT_S = 5.0
LOOKBACK_MS = 300_000  # of an instant query: what is older is not shown
_KNOCK_S = 1.0
_LISTS = frozenset(("file_sd", "http_sd"))
_WITH_HISTORY = frozenset(("recording", "prometheus"))
_HOPELESS_CYCLES = 3
_NEVER_CAME = frozenset(("refused", "http-error", "not-exposition", "no-permission"))


@dataclass(frozen=True, slots=True)
class Session:
    """What was collected: ``start_ms`` and ``end_ms`` bound the data, ``interval_ms`` is its sampling interval.

    ``live_ms``: beside older histories, where what was collected just now begins.
    """

    attachment: Attachment
    statuses: tuple[SourceStatus, ...]
    start_ms: int
    end_ms: int
    interval_ms: int
    live_ms: int | None = None

    def start_at(self, at_ms: int) -> int:
        """Where the data begins that a moment is read from: no rate now reaches back into yesterday's recording."""
        return self.live_ms if self.live_ms is not None and at_ms >= self.live_ms else self.start_ms

    def statuses_at(self, at_ms: int) -> tuple[SourceStatus, ...]:
        """How the sources stand at a moment: a recording that ended long before says nothing of it."""
        return tuple(_at(status, at_ms) for status in self.statuses)

    @property
    def view(self) -> View:
        return self.attachment.view

    @property
    def longest_window_ms(self) -> int:
        """``$window`` where there is enough data: four intervals, at least a minute."""
        return max(4 * self.interval_ms, MIN_WINDOW_MS)

    def window_at(self, at_ms: int) -> int:
        """``$window`` at a moment: never more than the data up to then (a rate over a window that is only partly
        filled would be too low)."""
        held = at_ms - self.start_at(at_ms)
        if held <= 0:
            return self.longest_window_ms
        return min(self.longest_window_ms, held // 1000 * 1000 or held)

    @property
    def scraped(self) -> bool:
        """Some target has no history of its own: what is known of it was collected just now."""
        return scrapes(self.attachment)

    @property
    def empty(self) -> bool:
        """No target gave a single sample, ever (a list of targets is none)."""
        return not any(gave(status) for status in self.statuses)

    def moment(self, at: Moment | None, option: str) -> int:
        """The time that an option asks for, the end of the data without one; ``CommandError`` when it lies outside."""
        at_ms = at.resolve(self.end_ms) if at else self.end_ms
        if not self.empty and not self.start_ms <= at_ms <= self.end_ms + self.interval_ms:
            raise CommandError(f"{option} {rfc3339(at_ms)} lies outside: {self.held}")
        return at_ms

    @property
    def held(self) -> str:
        return f"the data spans {rfc3339(self.start_ms)} to {rfc3339(self.end_ms)}"


def _at(status: SourceStatus, at_ms: int) -> SourceStatus:
    last_ms = status.last_ok_ms
    if status.kind != "recording" or status.state != "fresh" or last_ms is None or at_ms - last_ms <= LOOKBACK_MS:
        return status
    says = f"ends at {rfc3339(last_ms)}, long before the moment shown: --at shows it"
    return replace(status, state="stale", error="; ".join(filter(None, (says, status.error))))


def gave(status: SourceStatus) -> bool:
    """Whether a target ever gave samples."""
    return status.kind not in _LISTS and (status.last_ok_ms is not None or status.samples > 0)


def add_target_arguments(parser: argparse.ArgumentParser, *, nargs: str = "*") -> None:
    """TARGET and what goes with it."""
    parser.add_argument(
        "targets", metavar="TARGET", nargs=nargs, help="host:port, a URL, a recording (see `kvtop help`)"
    )
    add_attach_arguments(parser)


def add_attach_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=Path, help="targets with names, labels and credentials (YAML)")
    parser.add_argument(
        "--rules",
        metavar="DIR",
        type=Path,
        action="append",
        default=[],
        help="your own rule files, too",
    )
    parser.add_argument("--interval", metavar="DUR", type=duration_option, help="sampling interval (default 1s)")
    parser.add_argument(
        "--timeout",
        metavar="DUR",
        type=duration_option,
        default=round(TIMEOUT_S * 1000),
        help="deadline of a scrape (5s)",
    )
    parser.add_argument("--sysfs", metavar="PATH", type=Path, help="what the target rdma reads instead of /sys")


def attached(
    args: argparse.Namespace,
    *,
    max_bytes: int | None = None,
    lookback_ms: int = HISTORY_MS,
    names: Iterable[str] = (),
) -> Attachment:
    """Attach to what the words name; without any, to what is found on this host.

    ``max_bytes`` bounds the window that is held; by default as much as the kind of target asks for. A Prometheus
    server is asked for ``lookback_ms`` of history, of what the rules read and of ``names``.
    """
    from probes.attach import attach
    from probes.rules import RuleSet

    rules = RuleSet.load(args.rules)
    targets: Sequence[str] = args.targets
    if not targets and args.config is None:
        targets = found_here()
    attachment = attach(
        targets,
        config=args.config,
        interval_ms=args.interval,
        rules=rules,
        timeout_s=args.timeout / 1000,
        max_bytes=max_bytes,
        lookback_ms=lookback_ms,
        names=names,
        sysfs=args.sysfs,
    )
    if attachment.config.slo:
        objectives(attachment.config.slo)  # a broken one is refused by every command, not only where it is tested
    return attachment


def objectives(texts: Iterable[str]) -> tuple[Objective, ...]:
    """The user's objectives; a broken one is refused before any target is asked."""
    from playbooks.objective import objective
    from probes.promql.errors import PromQLError
    from probes.promql.parse import parse

    found = tuple(objective(text) for text in texts)
    for one in found:
        try:
            parse(one.check.test.expr.replace("$window", "1m").replace("$span", "1m"))
        except PromQLError as error:
            raise CommandError(f"objective {one.text!r}: {error}") from None
    return found


def reach_ms(*moments: Moment | None) -> int:
    """History that a Prometheus server must be asked for, so that there is a window before each of these moments."""
    now = round(time.time() * 1000)
    back = max((now - moment.resolve(now) for moment in moments if moment), default=0)
    return back + HISTORY_MS


def scrapes(attachment: Attachment) -> bool:
    """True when a target must be watched for a while; recordings and Prometheus servers have their history."""
    return any(status.kind not in _WITH_HISTORY for status in attachment.statuses)


def told_idle(attachment: Attachment, for_ms: int) -> None:
    """Say on stderr that ``--for`` changes nothing, where all targets have their history."""
    if for_ms and not scrapes(attachment):
        print("kvtop: --for has no effect: nothing is scraped, every target has its history (--at T)", file=sys.stderr)


def found_here() -> list[str]:
    """Metrics pages on this host's well-known ports; ``CommandError`` says how to attach when there is none."""
    import asyncio

    from probes.attach import discover

    listening = asyncio.run(discover())
    found = asyncio.run(_pages([target for target, _ in listening])) if listening else []
    if not found:
        raise CommandError(
            f"no target given and no metrics page found on this host (ports {_well_known()}); attach with host:port "
            "(vLLM: its API's port), "
            "prometheus+http://host:9090 or a recording's path, or try `kvtop demo`",
            EXIT_NOTHING,
        )
    return found


def _well_known() -> str:
    from probes.attach import WELL_KNOWN

    return ", ".join(str(port) for port, _ in WELL_KNOWN)


async def _pages(targets: Sequence[str]) -> list[str]:
    """Those that answer with a metrics page."""
    from probes.attach import attach

    attachment = attach(targets, timeout_s=_KNOCK_S)
    try:
        cycle = await attachment.cycle(round(time.time() * 1000), _KNOCK_S)
    finally:
        await attachment.close()
    return [target for target, status in zip(targets, cycle.statuses, strict=True) if status.state == "fresh"]


def collect(attachment: Attachment, for_ms: int = 0) -> Session:
    """One cycle, and more of them until ``for_ms`` have passed; what has its own history needs only one.

    Gives up early when after three cycles no target ever answered as a metrics page would.
    """
    began_ms = round(time.time() * 1000)
    statuses = None if for_ms and scrapes(attachment) else _collected_alone(attachment)
    if statuses is None:
        import asyncio

        statuses = asyncio.run(_collect(attachment, for_ms))
    span = attachment.span()
    now = round(time.time() * 1000)
    start, end = span if span is not None else (now, now)
    kinds = {status.kind for status in statuses}
    beside = "recording" in kinds and "prometheus" not in kinds and scrapes(attachment)
    live_ms = attachment.first_since(began_ms) if beside else None
    return Session(attachment, statuses, start, end, attachment.interval_ms, live_ms)


def _collected_alone(attachment: Attachment) -> tuple[SourceStatus, ...] | None:
    """A single target asked once needs no event loop; None where there are more."""
    from probes.sources.unlooped import finished

    cycle = attachment.cycle_alone(round(time.time() * 1000))
    if cycle is None:
        return None
    finished(attachment.close())
    return cycle.statuses


async def _collect(attachment: Attachment, for_ms: int) -> tuple[SourceStatus, ...]:
    import asyncio

    patience = max((getattr(source, "timeout_s", 0.0) for source in attachment.sources), default=TIMEOUT_S)
    interval_ms = attachment.sampler.interval_ms
    for_ms = for_ms if scrapes(attachment) else 0
    start = time.monotonic()
    due = 0.0
    cycles = 0
    progress = _Progress(for_ms)
    try:
        while True:
            now = round(time.time() * 1000)
            last = (time.monotonic() - start) * 1000 >= for_ms - interval_ms
            cycle = await attachment.cycle(now, patience if last or for_ms == 0 else None)
            cycles += 1
            spent = time.monotonic() - start
            progress.show(spent)
            if spent * 1000 >= for_ms or _hopeless(cycle.statuses, cycles):
                return cycle.statuses
            due += interval_ms / 1000
            await asyncio.sleep(max(0.0, min(start + due, start + for_ms / 1000) - time.monotonic()))
    finally:
        progress.clear()
        await attachment.close()


def _hopeless(statuses: Sequence[SourceStatus], cycles: int) -> bool:
    if cycles < _HOPELESS_CYCLES:
        return False
    return all(status.state in _NEVER_CAME and status.last_ok_ms is None for status in statuses)


class _Progress:
    """One line on a terminal's stderr while a person waits; nothing elsewhere."""

    def __init__(self, for_ms: int) -> None:
        self._for_ms = for_ms
        self._on = for_ms >= 2000 and sys.stderr.isatty()

    def show(self, spent_s: float) -> None:
        if self._on:
            text = f"collecting: {spent_s:.0f} s of {duration_text(self._for_ms)} (Ctrl-C stops)"
            print(f"\r{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._on:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def nothing(session: Session) -> CommandError:
    """Why nothing could be collected: the fault of each target, in one line."""
    return CommandError("nothing could be collected: " + "; ".join(map(fault, session.statuses)), EXIT_NOTHING)


def fault(status: SourceStatus) -> str:
    """A target and what is wrong with it, on one line."""
    return f"{name_text(status.target)}: {printable(status.error or status.state)}"
