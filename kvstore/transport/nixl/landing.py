"""Where reads land whose caller's memory is not registered, before they are copied there."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from kvstore.bitmap import Bitmap, Slots
from kvstore.transport.nixl.owner import Moved
from kvstore.transport.nixl.regions import Regions


class Run:
    """Consecutive landing slots. They are free again once both have let go: who reads, and who waits for it."""

    def __init__(self, landing: Landing, slots: Slots) -> None:
        self.slots = slots
        self._landing = landing
        self._holders = 2

    def let_go(self) -> None:
        with self._landing.lock:
            self._holders -= 1
            free = not self._holders
        if free:
            self._landing.give(self)


class Landing:
    """`slots` landing slots; `most` of them for one read."""

    def __init__(self, regions: Regions, slots: int, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self.region = regions.make(slots)
        self.slots = self.region.array()
        self.most = max(1, slots // 2)
        self.lock = threading.Lock()
        self._room = Bitmap(slots)
        self._waiting: list[Future[Moved]] = []

    def take(self, n: int) -> Run | Future[Moved]:
        """A run of `n` (at most `most`), or something that is done when it is worth asking again."""
        with self.lock:
            slots = self._room.allocate(n, one_run=True)
            if slots is not None:
                return Run(self, slots)
            later: Future[Moved] = Future()
            self._waiting.append(later)
            return later

    def give(self, run: Run) -> None:
        with self.lock:
            self._room.release(run.slots)
            waiting, self._waiting = self._waiting, []
        for later in waiting:
            if later.set_running_or_notify_cancel():
                later.set_result(Moved(0, 0, 0.0))
