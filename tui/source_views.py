"""Sources as the screen shows them: the sampler's statuses, with what each has to say in canonical names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from probes.records import dataclass
from tui.snapshot import SourceView
from tui.vocabulary import vocabulary

if TYPE_CHECKING:
    from playbooks.verdict import Diagnosis, Event
    from probes.attach import Attachment
    from probes.sources.base import SourceStatus

_OWN = frozenset(("up", "scrape_duration_seconds", "scrape_samples_scraped"))
_SUFFIX = re.compile(r"_(bucket|sum|count|total|created)$|_info:.*$")
STILL_OUT = "does not answer any more"  # as `playbooks.events` says it
PATIENT = 2.5  # intervals without an answer, after which a slow source counts as silent


def source_views(
    statuses: Sequence[SourceStatus], seen: Mapping[str, frozenset[str]], pages: Mapping[str, Page], clock: Clock
) -> tuple[SourceView, ...]:
    """Every source; ``seen`` maps a canonical name to the instances that have shown it, ``pages`` a target to what
    its page holds."""
    names = Counter(status.instance for status in statuses)
    views = (_view(status, seen, pages.get(status.target), clock) for status in statuses)
    return tuple(
        replace(view, name=status.instance if names[status.instance] == 1 else "")
        for status, view in zip(statuses, views, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Clock:
    """Now, since when the sources are asked, and how often (ms)."""

    now_ms: int
    began_ms: int
    interval_ms: int


@dataclass(frozen=True, slots=True)
class Page:
    """What a target's page (or file) holds: how many metric families, and of which instances."""

    families: int
    instances: frozenset[str]


def pages_of(attachment: Attachment) -> dict[str, Page]:
    """Target to its page, from the series in the store; what the scrape itself adds does not count."""
    found: dict[str, Page] = {}
    for source in attachment.sources:
        begins = (f"{source.target} ", "recording " if source.status.kind == "recording" else f"{source.target} ")
        frames = [f for f in attachment.store.frames if f"{f.source} ".startswith(begins)]
        series = [labels for frame in frames for labels in frame.labels if _of_the_page(labels.name)]
        families = {_SUFFIX.sub("", labels.name) for labels in series}
        found[source.target] = Page(len(families), frozenset(labels.get("instance") for labels in series))
    return found


def cut_of(statuses: Sequence[SourceStatus], pages: Mapping[str, Page]) -> frozenset[str]:
    """Instances of recordings that end too early: whole families may be missing."""
    cut = (pages[status.target].instances for status in statuses if status.incomplete and status.target in pages)
    return frozenset().union(*cut)


def _of_the_page(name: str) -> bool:
    return name not in _OWN and not name.startswith("kvscope_")


def _view(status: SourceStatus, seen: Mapping[str, frozenset[str]], page: Page | None, clock: Clock) -> SourceView:
    instances = page.instances if page and page.instances else frozenset(filter(None, (status.instance,)))
    present = tuple(name for name in vocabulary() if instances & seen.get(name, frozenset()))
    known = bool(seen) and status.last_ok_ms is not None
    brought = known and (status.ok or status.samples > 0)
    silent_s = _silence(status, clock)
    error = status.error or ""
    if silent_s is not None and error.startswith("no answer yet"):  # the attempt's own clock starts anew with each
        error = f"no answer yet after {silent_s:.0f} s"
    return SourceView(
        target=status.target,
        state=status.state,
        error=error,
        silent_s=silent_s,
        incomplete=status.incomplete,
        age_s=None if status.kind == "recording" else status.age_s(clock.now_ms),
        samples=status.samples if brought else None,
        page_bytes=status.bytes if brought else None,
        duration_s=status.duration_s if brought else None,
        families=page.families if page and known else None,
        instances=tuple(sorted(instances)),
        present=present if known else (),
        absent=tuple(name for name in vocabulary() if name not in present) if known else (),
    )


def _silence(status: SourceStatus, clock: Clock) -> float | None:
    """For how long (s) a source that is not well has given nothing; None while it is merely late."""
    if status.ok or status.kind == "recording":
        return None
    age_s = status.age_s(clock.now_ms)
    if age_s is None:
        return max(0.0, (clock.now_ms - clock.began_ms) / 1000)
    return age_s if age_s * 1000 > PATIENT * clock.interval_ms else None


def events_now(diagnosis: Diagnosis | None, sources: Sequence[SourceView], now_ms: int) -> tuple[Event, ...]:
    """What the diagnosis saw happen, and beside it each source that has fallen silent since: a diagnosis comes every
    ten seconds at best. One slow or failed scrape is no silence (`PATIENT`), nor is a source that never answered."""
    from playbooks.verdict import Event

    told = diagnosis.events if diagnosis else ()
    ongoing = {event.member.get("instance") for event in told if event.kind == "outage" and event.says == STILL_OUT}
    fallen = (one for one in sources if one.silent_s is not None and one.age_s is not None)
    return told + tuple(
        Event(now_ms - round((one.silent_s or 0.0) * 1000), "outage", {"instance": instance}, STILL_OUT)
        for one in fallen
        for instance in one.instances
        if instance not in ongoing
    )


def faults_of(statuses: Sequence[SourceStatus], now_ms: int, interval_ms: int) -> dict[str, str]:
    """Instance to its source's fault in words; a source that is merely slower than a tick has none yet."""
    found = {}
    for status in statuses:
        age_s = status.age_s(now_ms)
        slow = status.state == "timeout" and age_s is not None and age_s * 1000 <= PATIENT * interval_ms
        if status.state != "fresh" and status.instance and not slow:
            found[status.instance] = f"{status.state}: {status.error}" if status.error else status.state
    return found
