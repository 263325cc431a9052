"""Several requests in flight, with the answers of a replay one by one.

A request whose windows another one is about to put must not look them up before they are there, or the hit ratio would
depend on how fast the store is. Requests start in the trace's order; each waits for the lookups of earlier ones that
share a window with it, and for their end only where a shared window was missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Turn:
    """One request in flight: what it must wait for, and what others wait for."""

    def __init__(self, order: Order, windows: list[int]) -> None:
        loop = asyncio.get_running_loop()
        self._order = order
        self._windows = windows
        self._before = {turn for window in windows if (turn := order.last.get(window)) is not None}
        self._looked: asyncio.Future[frozenset[int]] = loop.create_future()
        self._done: asyncio.Future[None] = loop.create_future()
        order.last.update(dict.fromkeys(windows, self))

    async def ready(self) -> None:
        """Returns when a lookup of this request's windows sees what earlier requests put."""
        for turn in self._before:
            if not (await turn._looked).isdisjoint(self._windows):
                await turn._done
        self._before = set()

    def looked(self, missing: Iterable[int]) -> None:
        """The lookup has answered; `missing` windows will be put."""
        if not self._looked.done():
            self._looked.set_result(frozenset(missing))

    def done(self) -> None:
        """The request has ended, whatever came of it."""
        self.looked(())
        if not self._done.done():
            self._done.set_result(None)
        for window in self._windows:
            if self._order.last.get(window) is self:
                del self._order.last[window]


class Order:
    """Makes turns; `last` is the latest running request that refers to a window."""

    def __init__(self) -> None:
        self.last: dict[int, Turn] = {}

    def start(self, windows: list[int]) -> Turn:
        """To be called in the trace's order."""
        return Turn(self, windows)
