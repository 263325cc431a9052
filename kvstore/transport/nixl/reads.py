"""The reads of one peer: posted where they are asked for if they are short, by the agent's thread if not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from kvstore.errors import StoreError
from kvstore.transport.nixl.agent import Disconnected
from kvstore.transport.nixl.owner import SPIN_S, Make, Moved, Over, Owner
from kvstore.transport.nixl.regions import Region

HERE_S, COPY_S = 2e-3, 8e-3
"""Reads that the lane brings in so long are posted where they are asked for; the second where the post is the copy, as
over shared memory: whoever asks does nothing else meanwhile, and no more than in a mapped get (policy)."""
HOLD_S = 30e-6
"""So long they are looked after without a pause: a block over RDMA takes 5–10 µs. Over tcp it takes 60–100, and the
loop's other tasks may post theirs meanwhile."""
A_BYTE_S, LEARN_BYTES = 1e-9, 1 << 16
"""What a lane takes a byte until reads of some blocks have shown it (tcp: 1e-9, cma: 2.5e-10; measured)."""
LEARN_MOST = 4.0
"""One read counts for at most so many times what the lane was known to take: a stopped peer is no slow lane."""


class Pending:
    """One read that somebody waits for; it may outlive him. `here`: he looks after it himself, until `until`."""

    def __init__(self, region: Region, release: Callable[[], None], left: Callable[[Pending], None]) -> None:
        self.future: Future[Moved] = Future()
        self.here, self.until = False, 0.0
        self._region = region
        self._release = release
        self._left = left
        self._lock = threading.Lock()
        self._given_up = False
        region.begin()

    def over(self, said: Moved | Disconnected) -> None:
        """NIXL has said so: nothing of it lands any more."""
        self._left(self)
        with self._lock:
            waited_for = not self._given_up
            if waited_for and not self.future.done():
                if isinstance(said, Moved):
                    self.future.set_result(said)
                else:
                    self.future.set_exception(said)
        self._region.end(given_up=not waited_for)
        self._release()

    def give_up(self, why: StoreError) -> None:
        """Nobody waits for it any more; the memory stays its own until it is over."""
        with self._lock:
            if self.future.done():
                return
            self._given_up = True
            self._region.give_up()
            self.future.set_exception(why)


class Reads:
    """Those of one peer, and what its lane takes for them. `lose` ends it."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.lost: StoreError | None = None
        self._a_byte_s = A_BYTE_S
        self._copies = False
        self._pending: set[Pending] = set()
        self._lock = threading.Lock()

    def post(self, make: Make, region: Region, release: Callable[[], None], size: int) -> Moved | Pending:
        """Read `size` bytes into `region`: what it was, if it could be done at once. `release` is called when nothing
        of it lands any more. Raises `Disconnected`, and why the peer was lost."""
        if self.lost is not None:
            release()
            raise self.lost
        if self.here(size):
            begun = self._post_here(make, region, release, size)
            if begun is not None:
                return begun
        read = self._entered(region, release)
        try:
            self.owner.read(make, read.over)
        except StoreError as error:
            read.over(Disconnected(str(error)))
            raise
        return read

    def here(self, size: int) -> bool:
        """Whether a read of so many bytes is short enough to be posted by whoever asks."""
        return size * self._a_byte_s <= (COPY_S if self._copies else HERE_S)

    def _post_here(self, make: Make, region: Region, release: Callable[[], None], size: int) -> Moved | Pending | None:
        """None: the agent is in use."""
        read: Pending | None = None

        def later() -> Over:
            nonlocal read
            read = self._entered(region, release)
            read.here, read.until = True, time.perf_counter() + size * self._a_byte_s + SPIN_S
            return read.over

        try:
            moved = self.owner.read_here(make, HOLD_S, later)
        except BaseException:
            if read is None:
                release()
            else:
                read.give_up(StoreError("nobody waits for it"))
            raise
        if isinstance(moved, Moved):
            release()
            return self.learned(moved)
        return read

    def learned(self, moved: Moved) -> Moved:
        """What the lane takes a byte is known better now."""
        if moved.size >= LEARN_BYTES:
            took = min(moved.seconds / moved.size, LEARN_MOST * self._a_byte_s)
            self._a_byte_s += (took - self._a_byte_s) / 8
            self._copies = moved.posting > moved.seconds / 2
        return moved

    def give_up(self, read: Pending, why: StoreError) -> None:
        """Who asked for it waits no longer, and looks after it no longer."""
        read.give_up(why)
        self.owner.wake()

    def lose(self, why: StoreError) -> bool:
        """Whoever waits hears of it now. False where that had been said before."""
        with self._lock:
            if self.lost is not None:
                return False
            self.lost = why
            waiting, self._pending = self._pending, set()
        for read in waiting:
            read.give_up(why)
        return True

    def _entered(self, region: Region, release: Callable[[], None]) -> Pending:
        read = Pending(region, release, self._left)
        with self._lock:
            self._pending.add(read)
            lost = self.lost
        if lost is not None:  # `lose` has looked before
            read.give_up(lost)
        return read

    def _left(self, read: Pending) -> None:
        with self._lock:
            self._pending.discard(read)
