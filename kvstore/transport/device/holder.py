"""The process that holds a pool's memory, where that is not the shard: a device's memory goes with it.

A NIXL agent registers only memory of its own process, so the pool of a shard that is reached by NIXL, too, is its
mover's. What the device's memory is once that process has ended, nobody promises (CUDA calls it undefined for who has
it open). So a copy counts only if the process is there afterwards.
"""

from __future__ import annotations

import contextlib
import os
import select

from kvstore.errors import ShardUnavailable


class Holder:
    """By its pidfd, which this takes over. May be asked from any thread."""

    def __init__(self, pidfd: int) -> None:
        self.fd = pidfd
        # epoll, since several threads may ask at once.
        self._watch = select.epoll()
        self._watch.register(pidfd, select.EPOLLIN)

    def there(self) -> bool:
        """Whether it lives (stopped, it does): one system call. False once this was closed."""
        try:
            return not self._watch.poll(0)
        except ValueError:
            return False

    def require(self, who: str) -> None:
        """Raise `ShardUnavailable` where it has ended; `who`: the shard, for the error."""
        if not self.there():
            raise ShardUnavailable(f"{who}: the process that held its pool has ended, and the pool with it")

    def close(self) -> None:
        """May be called twice."""
        self._watch.close()
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.fd)
        self.fd = -1
