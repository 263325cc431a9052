"""Conversations that use a store: who opens sessions, comes back, and closes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, sin, tau
from random import Random
from zlib import crc32

from .store_shard import Session, StoreShard
from .workload import Lengths

WINDOW_TOKENS = 512
THINK, FIRST, TURN = Lengths(18, 0.5, 2, 90), Lengths(1400, 0.5, 64, 6000), Lengths(260, 0.5, 16, 2000)


@dataclass
class SessionClass:
    """One kind of client. Times in seconds, lengths in tokens; a scene may change any field while it runs.

    ``closes``: the share of conversations whose client closes the session at the end; the others wait for the TTL.
    Without ``keeps`` they use no sessions at all. ``again``: the chance that another turn follows; ``think``: the time
    until then.
    """

    name: str
    rate: float
    ttl: float = 1800.0
    closes: float = 1.0
    again: float = 0.7
    think: Lengths = field(default=THINK)
    first: Lengths = field(default=FIRST)
    turn: Lengths = field(default=TURN)
    shared: int = 2
    scale: float = 1.0
    keeps: bool = True


@dataclass(eq=False)
class Conversation:
    number: int
    kind: SessionClass
    tokens: int
    last: float = 0.0
    stored: dict[str, int] = field(default_factory=dict)

    def windows(self) -> list[tuple[str, int]]:
        """(key, tokens) of every window: the class's shared ones first."""
        found = [(f"{self.kind.name}/shared/{i}", WINDOW_TOKENS) for i in range(self.kind.shared)]
        full, rest = divmod(self.tokens, WINDOW_TOKENS)
        found += [(f"{self.kind.name}/{self.number}/{i}", WINDOW_TOKENS) for i in range(full)]
        return found + ([(f"{self.kind.name}/{self.number}/{full}", rest)] if rest else [])


class Clients:
    """Turns of conversations against the shards; windows are placed by hash."""

    def __init__(self, shards: Sequence[StoreShard], classes: Sequence[SessionClass], rng: Random) -> None:
        self.shards, self.classes, self.rng = shards, classes, rng
        self.swing, self.period, self.phase = rng.uniform(0.03, 0.12), rng.uniform(90, 260), rng.uniform(0, tau)
        self._next = 0

    def rate(self, kind: SessionClass, now: float) -> float:
        return kind.rate * kind.scale * (1 + self.swing * sin(tau * now / self.period + self.phase))

    def gap(self, kind: SessionClass, now: float) -> float:
        """Seconds to the next arrival."""
        rate = self.rate(kind, now)
        return self.rng.expovariate(rate) if rate > 0 else 5.0

    def begin(self, kind: SessionClass) -> Conversation:
        self._next += 1
        return Conversation(self._next, kind, kind.first.draw(self.rng))

    def home(self, conversation: Conversation) -> StoreShard:
        return self.shards[crc32(str(conversation.number).encode()) % len(self.shards)]

    def placed(self, key: str) -> StoreShard:
        return self.shards[crc32(key.encode()) % len(self.shards)]

    def turn(self, conversation: Conversation, now: float) -> float | None:
        """One turn at ``now``; the seconds until the next, None when the conversation is over."""
        session = self._session(conversation, now)
        wanted: dict[str, list[tuple[str, int]]] = {}
        for key, tokens in conversation.windows():
            wanted.setdefault(self.placed(key).name, []).append((key, tokens))
        for shard in self.shards:
            if shard.name in wanted:
                self._use(shard, wanted[shard.name], conversation, session, now)
        conversation.last = now
        if self.rng.random() < conversation.kind.again and conversation.tokens < 12_000:
            conversation.tokens += conversation.kind.turn.draw(self.rng)
            return float(conversation.kind.think.draw(self.rng)) * exp(self.rng.gauss(0, 0.1))
        if session is not None and self.rng.random() < conversation.kind.closes:
            self.end(self.home(conversation), session.number, "closed")
        return None

    def _session(self, conversation: Conversation, now: float) -> Session | None:
        home = self.home(conversation)
        if not home.serves or not conversation.kind.keeps:
            return None
        session = home.sessions.get(conversation.number)
        kind = conversation.kind
        if conversation.last:
            meters = home.meters.of_class(kind.name)
            meters.returns["alive" if session else "expired"] += 1
            meters.return_gap.observe(now - conversation.last)
        if session is None:
            return home.open(conversation.number, kind.name, kind.ttl, now)
        home.operation("touch", now, 2.5e-5)
        session.last_use = now
        return session

    def _use(
        self, shard: StoreShard, windows: list[tuple[str, int]], of: Conversation, session: Session | None, now: float
    ) -> None:
        if not shard.serves:
            return
        found = shard.lookup(windows, now)
        for key, tokens in windows:
            chunk = shard.pool.chunks.get(key) if key in found else None
            if chunk is not None and chunk.tokens >= tokens:
                if session is not None:
                    shard.pool.hold(chunk, session.number)
                    session.chunks.setdefault(shard.name, {})[key] = None
                continue
            if chunk is not None:  # the tail moves on: its blocks are written anew
                shard.append(now)
                shard.pool.drop(key, "removed")
            shard.put(key, tokens, session, now)

    def end(self, home: StoreShard, number: int, reason: str) -> None:
        """A session ends: closed ones leave their blocks cached, expired ones take them along."""
        session = home.ended(number, reason)
        for shard in self.shards:
            for key in session.chunks.get(shard.name, ()):
                chunk = shard.pool.chunks.get(key)
                if chunk is not None:
                    shard.pool.release(chunk, number, expired=reason == "expired")

    def sweep(self, now: float) -> None:
        """What every shard's sweeper does once a second."""
        for shard in self.shards:
            if shard.serves:
                for number in shard.overdue(now):
                    self.end(shard, number, "expired")
