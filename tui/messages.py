"""What the monitor tells the app: one message a tick, or that there will be none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from tui.snapshot import Snapshot


class Ticked(Message):
    """A new picture."""

    def __init__(self, shot: Snapshot) -> None:
        super().__init__()
        self.shot = shot


class Failed(Message):
    """Attaching failed: nothing to show, one line to say."""

    def __init__(self, says: str) -> None:
        super().__init__()
        self.says = says
