"""A terminal driver that lets go at once."""

from __future__ import annotations

from textual.drivers.linux_driver import LinuxDriver


class QuickDriver(LinuxDriver):
    """Leaves without waiting for the key thread, which looks up only every 0.1 s, and twice.

    The thread sees the event that is set again here and ends by itself.
    """

    def disable_input(self) -> None:
        leaving = self._app._exit
        if leaving:
            self._key_thread = None
        super().disable_input()
        if leaving:
            self.exit_event.set()
