"""A terminal driver that lets go at once."""

from __future__ import annotations

import asyncio
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from tui.app import KvtopApp


class QuickDriver(LinuxDriver):
    """Leaves without waiting for the key thread, which looks up only every 0.1 s, and twice.

    The thread sees the event that is set again here and ends by itself. And whenever the terminal says that its size
    changed, all is painted: two changes that cancel each other leave the same size, but not the same screen.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self._file is None or not self._file.isatty():  # Textual draws on standard error; it was sent to a file
            self._file = sys.__stdout__

    def start_application_mode(self) -> None:
        super().start_application_mode()  # type: ignore[no-untyped-call]
        told, loop = signal.getsignal(signal.SIGWINCH), asyncio.get_running_loop()

        def resized(number: int, frame: FrameType | None) -> None:
            if callable(told):
                told(number, frame)
            loop.call_soon_threadsafe(cast("KvtopApp", self._app).resized)

        signal.signal(signal.SIGWINCH, resized)

    def disable_input(self) -> None:
        leaving = self._app._exit
        if leaving:
            self._key_thread = None
        super().disable_input()
        if leaving:
            self.exit_event.set()
