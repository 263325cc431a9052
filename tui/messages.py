"""What the monitor tells the app: one message a tick, and answers to what it was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from tui.provenance import Provenance
    from tui.snapshot import Snapshot


class Ticked(Message):
    """A new picture."""

    def __init__(self, shot: Snapshot) -> None:
        super().__init__()
        self.shot = shot


class Explained(Message):
    """Where a number comes from."""

    def __init__(self, origin: Provenance) -> None:
        super().__init__()
        self.origin = origin


class Failed(Message):
    """Attaching failed: nothing to show, one line to say."""

    def __init__(self, says: str) -> None:
        super().__init__()
        self.says = says
