"""What a source is, and how it says how it stands."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Protocol

from probes.records import dataclass

State = Literal[
    "fresh",
    "stale",
    "refused",
    "timeout",
    "http-error",
    "not-exposition",
    "truncated",
    "empty",
    "unsupported",
    "no-permission",
    "gone",
]

ANSWERED: frozenset[State] = frozenset(("fresh", "stale", "empty"))
"""The states in which the target itself answered as a target should."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How one attempt at a target went.

    ``target`` is the target as shown to people (no credentials). ``error`` says in words what is wrong, or None;
    ``detail`` is a remark that is no fault. ``time_ms`` is the attempt's time, ``last_ok_ms`` that of the newest
    samples that the target gave, ``duration_s`` the length of the attempt, ``samples`` and ``bytes`` what it brought.
    ``incomplete``: of what the target once gave, whole families may be missing here.
    """

    target: str
    state: State
    error: str | None = None
    time_ms: int = 0
    last_ok_ms: int | None = None
    duration_s: float = 0.0
    samples: int = 0
    bytes: int = 0
    detail: str = ""
    kind: str = ""
    job: str = ""
    instance: str = ""
    incomplete: bool = False

    @property
    def ok(self) -> bool:
        return self.state in ANSWERED

    def failed(self, now_ms: int, duration_s: float, state: State, error: str) -> SourceStatus:
        """The status after an attempt that brought nothing; when it last gave samples stays."""
        return replace(
            self, state=state, error=error, time_ms=now_ms, duration_s=duration_s, samples=0, bytes=0, detail=""
        )

    def age_s(self, now_ms: int) -> float | None:
        """Seconds since the target last gave samples; None when it never did."""
        return None if self.last_ok_ms is None else max(0.0, (now_ms - self.last_ok_ms) / 1000)


class Source(Protocol):
    """One target. ``collect`` is one attempt within the source's own deadline; it writes into the source's frame and
    never raises for what the target does."""

    @property
    def target(self) -> str:
        """The target as shown to people: no credentials."""
        ...

    @property
    def status(self) -> SourceStatus:
        """How the latest finished attempt went."""
        ...

    async def collect(self, now_ms: int) -> SourceStatus: ...

    async def close(self) -> None: ...

    def expire(self, now_ms: int) -> None:
        """Nothing more will come: end the source's series."""
        ...
