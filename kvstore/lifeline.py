"""A process that ends with the one that started it: a pipe whose other end only the starter holds."""

from __future__ import annotations

import os
import signal
import threading


def end_with(fd: int) -> None:
    """SIGTERM to ourselves once the pipe `fd` ends, as it does however its writer ends; nothing for a negative one."""
    if fd < 0:
        return

    def wait() -> None:
        while os.read(fd, 64):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
