"""Whose request begins next: every asker's in turn, so that one with a thousand waiting holds no other up for long.

A shard has one thread. Requests that have come together would all begin before the loop looks for new ones, and whoever
asks next would wait for all of them; here only a few of each asker begin between two looks. What has begun may wait
(for credits, for the log) side by side as before, so that group commit has its groups.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable

AT_ONCE = 4
"""Small requests of one asker that begin between two looks for new ones: a look takes some 10 µs, a small request ten
times that (policy)."""
SMALL_BYTES = 1024
"""A larger request counts as several: these are 30 keys of a lookup, or a dozen blocks of a put (policy)."""

_Begin = Callable[[], None]


class Turns:
    """For one event loop."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[tuple[int, _Begin]]] = {}
        self._begun: dict[Hashable, int] = {}
        self._called = False

    def begin(self, who: Hashable, size: int, begin: _Begin) -> None:
        """Call `begin` for a request of `size` bytes: at once, or when it is `who`'s turn."""
        weight = 1 + size // SMALL_BYTES
        if who not in self._queues and self._begun.get(who, 0) < AT_ONCE:
            self._begun[who] = self._begun.get(who, 0) + weight
            begin()
        else:
            self._queues.setdefault(who, deque()).append((weight, begin))
        if not self._called:
            self._called = True
            asyncio.get_running_loop().call_soon(self._turn)

    async def mine(self, who: Hashable, size: int) -> None:
        """Returns when a request of `size` bytes may begin."""
        if who not in self._queues and self._begun.get(who, 0) < AT_ONCE:
            self.begin(who, size, _nothing)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begin(who, size, lambda: None if turn.done() else turn.set_result(None))
        await turn

    def waiting(self, who: Hashable) -> int:
        """Requests that have not begun."""
        return len(self._queues.get(who, ()))

    def forget(self, who: Hashable) -> None:
        """What has not begun never does."""
        self._queues.pop(who, None)

    def _turn(self) -> None:
        self._called = False
        self._begun.clear()
        for who, queue in list(self._queues.items()):
            begun = 0
            while queue and begun < AT_ONCE:
                weight, begin = queue.popleft()
                begun += weight
                begin()
            self._begun[who] = begun
            if not queue:
                self._queues.pop(who, None)
        if self._begun:
            self._called = True
            asyncio.get_running_loop().call_soon(self._turn)


def _nothing() -> None:
    pass
