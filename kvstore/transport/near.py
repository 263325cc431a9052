"""What peers on this host have in common: facts, a mapped index, and the two ends that can be seen to end."""

from __future__ import annotations

import os
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvstore.header import Bytes
from kvstore.index import Index

if TYPE_CHECKING:
    from kvstore.transport.probe import Bandwidth

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


class NearPeer(ABC):
    """A shard of this host behind its door: its pidfd, and the connection that stays open and silent."""

    def __init__(self, facts: dict[str, Any], index: Index, pidfd: int, connection: socket.socket) -> None:
        self.facts = facts
        self.when_dead: Callable[[], None] | None = None
        self.index: Index | None = index
        self.bandwidth: Bandwidth | None = None
        """As measured when we first connected; None: it was not."""
        self._pidfd = pidfd
        self._connection = connection
        # epoll, since several threads may ask one at once.
        self._watch = select.epoll()
        self._watch.register(pidfd, select.EPOLLIN)
        self._both = select.epoll()
        self._both.register(pidfd, select.EPOLLIN)
        self._both.register(connection.fileno(), select.EPOLLIN | select.EPOLLRDHUP)

    @abstractmethod
    def read(self, slots: Ints, rows: Ints | None, out: Bytes) -> int:
        """See `Peer.read`; a slot outside the pool is a `BadRequest`."""

    @abstractmethod
    def generations(self, slots: Ints) -> Words:
        """See `Peer.generations`."""

    def alive(self) -> bool:
        return self._pidfd >= 0 and _silent(self._watch)

    def connected(self) -> bool:
        """One system call; the door says nothing after its welcome, so anything to read there is its end."""
        return self._pidfd >= 0 and _silent(self._both)

    def close(self) -> None:
        """Say goodbye; the maps go when nobody looks at them any more."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
            self._watch.close()
            self._both.close()
            self._let_go(self._connection)
            if self.index is not None:
                self.index.memory.close()

    def _let_go(self, connection: socket.socket) -> None:
        """What else there is to close, the connection among it."""
        connection.close()


def _silent(watch: select.epoll) -> bool:
    try:
        return not watch.poll(0)
    except ValueError:  # closed by the client's loop while another thread was about to ask
        return False
