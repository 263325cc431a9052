"""What a diagnosis says: immutable facts, ready for text, JSON, Markdown and the screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from probes.records import dataclass


class Verdict(StrEnum):
    """Standing of one cause for one member, strongest first."""

    CONFIRMED = "confirmed"
    LIKELY = "likely"
    SUSPECTED = "suspected"
    UNKNOWN = "unknown"
    REFUTED = "refuted"
    NOT_APPLICABLE = "not-applicable"

    @property
    def is_finding(self) -> bool:
        return self in (Verdict.CONFIRMED, Verdict.LIKELY, Verdict.SUSPECTED)


class Overall(StrEnum):
    HEALTHY = "healthy"
    FINDING = "finding"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One test that held: what was asked, what came back, and why the line lies where it lies.

    ``expr`` is the expression as evaluated (``$window`` filled in), ``value`` its value for the member,
    ``basis`` one of physical, vendor, paper, measured, policy, and ``source`` where the threshold comes from.
    """

    test: str
    expr: str
    value: float
    op: str
    threshold: float
    basis: str
    window_s: float
    source: str = ""
    kind: str = "metrics"
    says: str = ""


@dataclass(frozen=True, slots=True)
class Refutation:
    """A look-alike that was ruled out, and the test that did it."""

    cause: str
    by: str
    says: str = ""


@dataclass(frozen=True, slots=True)
class Quantity:
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command to show, never to run. ``safety`` is read-only, active or needs-root."""

    command: str
    safety: str


@dataclass(frozen=True, slots=True)
class Finding:
    cause: str
    title: str
    verdict: Verdict
    member: Mapping[str, str]
    evidence: tuple[Evidence, ...]
    refuted: tuple[Refutation, ...] = ()
    explains: tuple[str, ...] = ()
    cost: Mapping[str, Quantity] = field(default_factory=dict)
    what_if: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    confirm: tuple[Command, ...] = ()
    onset_ms: int | None = None
    ended_ms: int | None = None
    summary: str = ""
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Undecided:
    """A cause that cannot be decided for a member: which signals are missing, and how to turn them on."""

    cause: str
    member: Mapping[str, str]
    missing: tuple[str, ...]
    enable: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Unexplained:
    """A bad symptom or resource that no finding accounts for."""

    resource: str
    member: Mapping[str, str]
    expr: str
    value: float
    says: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened and is not a fault by itself: a restart, a counter reset, a gap."""

    time_ms: int
    kind: str
    member: Mapping[str, str]
    says: str


@dataclass(frozen=True, slots=True)
class CoreCheck:
    """One of the five questions that "healthy" rests on; ``bad`` is None when it cannot be decided."""

    name: str
    bad: bool | None
    says: str = ""


_ANSWERED = frozenset(("fresh", "stale", "empty", "no-data"))


@dataclass(frozen=True, slots=True)
class SourceLine:
    """How a source stands, in the words of the diagnosis."""

    target: str
    state: str
    age_s: float | None
    error: str | None = None
    incomplete: bool = False
    """Whole families may be missing: what is not there can neither support nor refute."""

    @property
    def never_answered(self) -> bool:
        """True when this target has given nothing at all so far."""
        return self.age_s is None and self.state not in _ANSWERED


@dataclass(frozen=True, slots=True)
class Diagnosis:
    verdict: Overall
    start_ms: int
    end_ms: int
    findings: tuple[Finding, ...] = ()
    unknown: tuple[Undecided, ...] = ()
    unexplained: tuple[Unexplained, ...] = ()
    events: tuple[Event, ...] = ()
    core: tuple[CoreCheck, ...] = ()
    refuted: tuple[Refutation, ...] = ()
    sources: tuple[SourceLine, ...] = ()

    def exit_code(self, *, strict: bool = False) -> int:
        """0 healthy, 1 finding, 3 cannot tell, 4 nothing could be collected (design: command line)."""
        if self.verdict is Overall.FINDING:
            return 1
        # A source that died within the window did give something: its age says so.
        if self.sources and all(s.never_answered for s in self.sources):
            return 4
        if self.verdict is Overall.UNKNOWN or (strict and self.unknown):
            return 3
        return 0
