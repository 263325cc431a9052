"""What the person looks at: screen, selection, order. Immutable, apart from the data, and drawn together with it."""

from __future__ import annotations

from probes.labels import Labels
from probes.records import dataclass
from tui.reading import FLEET, EntityReading
from tui.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Look:
    """Selections of all screens.

    ``entity`` is the engine whose numbers the tiles show (no labels: the fleet), ``silent`` the selected target
    among those without a row ("": the selection is ``entity``), ``panel`` the selected number,
    ``sort`` the panel that orders the table ("" for names). ``item`` counts in the findings list, ``source`` in the
    list of sources; ``open`` says that the finding's card fills the screen, scrolled down by ``scroll`` lines.
    """

    screen: str = "overview"
    entity: Labels = FLEET
    panel: str = "kv:pool_usage_ratio"
    silent: str = ""
    sort: str = ""
    item: int = 0
    source: int = 0
    open: bool = False
    scroll: int = 0


def ordered(shot: Snapshot, look: Look) -> list[EntityReading]:
    """Engine rows in the table's order: by name, or the highest value first and rows without a value last."""
    rows = list(shot.rows)
    if look.sort:
        rows.sort(key=lambda row: -_number(row, look.sort))
    return rows


def _number(row: EntityReading, panel: str) -> float:
    value = row.value(panel)
    return float("-inf") if value is None else value


def selected(shot: Snapshot, look: Look) -> EntityReading:
    """The row whose numbers the tiles show; a fleet of one is that one."""
    if len(shot.rows) == 1:
        return shot.rows[0]
    for row in shot.rows:
        if look.entity and row.key is look.entity:
            return row
    return shot.fleet
