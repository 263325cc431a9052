"""The one thread that owns an agent: a queue of work, reads under way, polling that sleeps.

A small read need not go through the queue and back, which costs several times what it takes itself: whoever asks may
post it and look after it for a moment, if nobody is using the agent now (`_lock`). Everything else, peers above all, is
done by the thread alone. Whoever posts may be cut short at any point (Ctrl-C in plain code): a read is entered before
it is posted, so that it is looked after until it ends whatever happens to him.

A read ends when NIXL says so and never before (see the package's page): whoever has waited long enough goes on without
it, and hears of its end by `over`. Until then the memory that it writes into is not his.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeVar

from kvstore.errors import ShardUnavailable
from kvstore.transport.nixl.agent import Agent, Disconnected, Transfer, agent_name

T = TypeVar("T")
Make = Callable[[Agent], Transfer]
Over = Callable[["Moved | Disconnected"], None]

SPIN_S = 300e-6
"""So long after a post the thread only yields: a read of some blocks over tcp takes 60–150 µs, a nap at least 60."""
NAP_S, LONGEST_NAP_S = 50e-6, 2e-3
END_S = 5.0
IDLE_S = 1.0
"""Without reads under way it looks so often whether a connection has ended."""


class Moved(NamedTuple):
    """What a read was: descriptors, bytes, seconds from post to end, and those that the post itself took."""

    descriptors: int
    size: int
    seconds: float
    posting: float = 0.0


@dataclass(eq=False, slots=True)
class _Read:
    transfer: Transfer
    over: Over | None = None
    began: float = field(default_factory=time.perf_counter)
    posted: float = 0.0

    def moved(self) -> Moved:
        began, done = self.began, self.transfer
        return Moved(done.descriptors, done.size, time.perf_counter() - began, self.posted - began)


class Owner:
    """An agent and its thread. Closing it abandons what is under way: the process has to end soon after, or the memory
    has to stay (`under_way`)."""

    def __init__(self, kind: str, *, serves: bool) -> None:
        self.name = agent_name(kind)
        self._queue: SimpleQueue[Callable[[Agent], None] | None] = SimpleQueue()
        self._reads: list[_Read] = []
        self._leaving: list[tuple[str, tuple[int, ...]]] = []
        self._made: Future[None] = Future()
        self._closed = False
        self._lock = threading.Lock()
        self._agent: Agent | None = None
        _living.add(self)
        self._thread = threading.Thread(target=self._live, args=(serves,), name=f"nixl-{kind}", daemon=True)
        self._thread.start()
        self._made.result()

    @property
    def under_way(self) -> int:
        """Reads that have not ended."""
        return len(self._reads)

    def submit(self, work: Callable[[Agent], T]) -> Future[T]:
        """Do `work` on the agent's thread."""
        done: Future[T] = Future()

        def act(agent: Agent) -> None:
            try:
                done.set_result(work(agent))
            except BaseException as error:
                done.set_exception(error)

        self._put(act)
        return done

    def call(self, work: Callable[[Agent], T]) -> T:
        """The result of `work`, done on the agent's thread (a short one: the caller waits)."""
        return self.submit(work).result()

    def read(self, make: Make, over: Over) -> None:
        """Post a read on the agent's thread; `over` is called there once it has ended, well or badly."""

        def act(agent: Agent) -> None:
            try:
                self._begin(agent, make, over)
            except Disconnected as error:
                over(error)

        self._put(act)

    def read_here(self, make: Make, seconds: float, later: Callable[[], Over]) -> Moved | bool:
        """Post a read on the caller's own thread, if the agent is free, and look after it for so many seconds.

        What it was, if it has ended by then (raises `Disconnected`: badly). Else True, and `later` has been asked who
        is to hear of its end, on some thread: the caller may go on to `look` after it, and says `wake` when he has no
        more time for that. False: nothing was done, the agent is in use. An exception may come from outside (Ctrl-C):
        if `later` was asked, the read is under way.
        """
        # Not `acquire(blocking=False)`: between that and a `try` an exception (Ctrl-C) would leave it locked.
        if self._closed or self._lock.locked():
            return False
        with self._lock:
            agent = self._agent
            if agent is None:
                return False
            try:
                read = self._begin(agent, make)
                end = read.began + seconds
                while not self._ended(agent, read):
                    if time.perf_counter() >= end:
                        read.over = later()
                        return True
                return read.moved()
            except Disconnected:
                raise
            except BaseException:
                for read in self._reads:
                    if read.over is None:
                        read.over = later()
                raise

    def _begin(self, agent: Agent, make: Make, over: Over | None = None) -> _Read:
        """A read, entered and posted; raises `Disconnected`."""
        try:
            read = _Read(make(agent), over)
        except Exception as error:
            raise Disconnected(str(error)) from None
        self._reads.append(read)
        try:
            agent.post(read.transfer)
        except Disconnected:
            self._reads.remove(read)
            raise
        read.posted = time.perf_counter()
        return read

    def _ended(self, agent: Agent, read: _Read) -> bool:
        """Whether it has ended, and is looked after no longer; raises `Disconnected`: badly."""
        try:
            if not agent.over(read.transfer):
                return False
        except Disconnected:
            self._reads.remove(read)
            raise
        self._reads.remove(read)
        return True

    def look(self, seconds: float) -> None:
        """Look after the reads under way, if nobody else does: until one has ended, or for so long."""
        if self._reads and not self._lock.locked():
            with self._lock:
                end = time.perf_counter() + seconds
                while self._agent is not None and not self._poll(self._agent) and time.perf_counter() < end:
                    pass

    def wake(self) -> None:
        """The thread is to look after what was posted elsewhere."""
        self.at_leisure(lambda agent: None)

    def meet(self, name: str, known_as: str, metadata: bytes) -> Future[None]:
        """Load a peer's metadata: see `Agent.add`. `forget(known_as)` is to follow, also where it failed."""
        return self.submit(lambda agent: agent.add(metadata, name, known_as))

    def forget(self, known_as: str, *prepared: int) -> None:
        """Let a peer go, with lists that were prepared for it, as soon as no read from it is under way."""

        def act(agent: Agent) -> None:
            self._leaving.append((known_as, prepared))
            self._let_go(agent)

        self.at_leisure(act)

    def at_leisure(self, act: Callable[[Agent], None]) -> None:
        """Tidy something up on the agent's thread; nothing is done once the agent is closed, and nothing is left."""
        if not self._closed:
            self._queue.put(act)

    def close(self) -> None:
        """End the thread and the agent. May be called twice."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join(END_S)

    def _put(self, act: Callable[[Agent], None]) -> None:
        if self._closed:
            raise ShardUnavailable("the transport is closed")
        self._queue.put(act)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _live(self, serves: bool) -> None:
        try:
            agent = Agent(self.name, serves=serves)
        except BaseException as error:
            self._made.set_exception(error)
            return
        self._agent = agent
        self._made.set_result(None)
        with contextlib.suppress(_Ended):
            while True:
                self._turn(agent)
        with self._lock:
            self._agent = None
        if self._reads:
            _abandoned.append(agent)  # destroying it under its reads would abort the process at their other end
        else:
            agent.close()

    def _turn(self, agent: Agent) -> None:
        """Take what is in the queue, or wait for it as long as the reads under way allow; then look after these."""
        nap = self._nap()
        try:
            self._act(agent, self._queue.get(timeout=nap) if nap else self._queue.get_nowait())
            while True:
                self._act(agent, self._queue.get_nowait())
        except Empty:
            pass
        with self._lock:
            if self._reads:
                self._poll(agent)
            elif nap:
                agent.progress()

    def _act(self, agent: Agent, act: Callable[[Agent], None] | None) -> None:
        if act is None:
            raise _Ended
        with self._lock:
            act(agent)

    def _nap(self) -> float:
        # A copy: others post here, too. What they have not left to anybody yet is no reason to come back soon.
        ours = [read for read in self._reads[:] if read.over is not None]
        if not ours:
            return IDLE_S
        age = time.perf_counter() - ours[-1].began
        if age < SPIN_S:
            os.sched_yield()
            return 0.0
        return min(LONGEST_NAP_S, NAP_S + age / 64)

    def _poll(self, agent: Agent) -> bool:
        """Whether a read has ended; who waits for it has heard."""
        ended = False
        for read in self._reads[:]:
            said: Moved | Disconnected
            try:
                if not self._ended(agent, read):
                    continue
                said = read.moved()
            except Disconnected as error:
                said = error
            ended = True
            if read.over is not None:
                read.over(said)
        if self._leaving:
            self._let_go(agent)
        return ended

    def _let_go(self, agent: Agent) -> None:
        busy = {read.transfer.peer for read in self._reads}
        for peer, prepared in [gone for gone in self._leaving if gone[0] not in busy]:
            self._leaving.remove((peer, prepared))
            for one in prepared:
                agent.drop(one)
            agent.remove(peer)


class _Ended(Exception):  # noqa: N818 - the thread's own way out
    """Somebody closed it."""


_abandoned: list[Agent] = []
_living: weakref.WeakSet[Owner] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """A thread that comes back from NIXL into an interpreter that has ended aborts the process."""
    for owner in list(_living):
        owner.close()
