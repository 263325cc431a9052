"""One immutable picture of everything on the screen; built by the monitor, drawn by the widgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from probes.labels import Labels
from probes.records import dataclass
from tui.cursor import Cursor, Mode
from tui.reading import EntityReading
from tui.trail import NO_TRAIL, Key, Trail

if TYPE_CHECKING:
    from playbooks.verdict import Diagnosis, Event
    from tui.pools import Pool
    from tui.provenance import Provenance


@dataclass(frozen=True, slots=True)
class SourceView:
    """How one target stands: state and fault in words, its last scrape, and what it has to say.

    ``name`` is what a person calls it (its instance), where that tells it from the others. ``families`` counts the
    metric families on its page; ``present`` and ``absent`` are canonical names, ``absent`` those that this target has
    not shown. ``silent_s`` is set for a source that is not merely late: for how long it has given nothing, since its
    last good answer or, without one, since it was first asked. None is not known.
    """

    target: str
    state: str
    error: str = ""
    age_s: float | None = None
    samples: int | None = None
    page_bytes: int | None = None
    duration_s: float | None = None
    families: int | None = None
    instances: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    name: str = ""
    silent_s: float | None = None
    incomplete: bool = False

    @property
    def title(self) -> str:
        return self.name or self.target

    @property
    def ok(self) -> bool:
        return self.state == "fresh"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The screen's whole knowledge at one moment.

    ``time_ms`` is the moment that the readings are for, ``now_ms`` the wall clock; ``span_ms`` what the charts show.
    ``diagnosis`` is None until there is one for this moment (``examining``: it is being made); ``trouble`` is the
    monitor's own fault, in words; ``pages`` maps a cause to the text of its runbook.
    """

    time_ms: int
    now_ms: int
    interval_ms: int
    window_ms: int
    span_ms: int
    cursor: Cursor
    rows: tuple[EntityReading, ...] = ()
    fleet: EntityReading = field(default_factory=lambda: EntityReading({}, {}))
    trails: Mapping[Key, Trail] = field(default_factory=dict)
    sources: tuple[SourceView, ...] = ()
    diagnosis: Diagnosis | None = None
    events: tuple[Event, ...] = ()
    trouble: str = ""
    label: str = ""
    pages: Mapping[str, str] = field(default_factory=dict)
    opening: str = "connecting"
    examining: bool = False
    pools: tuple[Pool, ...] | None = None
    """What the Pool screen shows; None while nobody looks at it."""
    origin: Provenance | None = None
    """Where a number of this moment comes from; None while nobody asks."""

    def trail(self, panel: str, entity: Labels) -> Trail:
        return self.trails.get((panel, entity), NO_TRAIL)

    @property
    def empty(self) -> bool:
        return not self.rows and not self.sources


def nothing_yet(interval_ms: int, window_ms: int, label: str = "", opening: str = "connecting") -> Snapshot:
    """The picture before the first scrape: no data, which is not health."""
    cursor = Cursor(Mode.LIVE, 0, 0, 0)
    return Snapshot(0, 0, interval_ms, window_ms, window_ms, cursor, label=label, opening=opening)
