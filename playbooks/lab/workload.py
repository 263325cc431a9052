"""Who asks what, and when: arrival processes, prompt families and length distributions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp, log, sin, tau
from random import Random
from typing import Protocol

from .prefix import Segment, new_text
from .request import Request
from .scheduler import Engine


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths in tokens: ``mean``, ``sigma`` of the logarithm, cut to ``low`` … ``high``."""

    mean: float
    sigma: float = 0.5
    low: int = 4
    high: int = 100_000

    def draw(self, rng: Random) -> int:
        mu = log(self.mean) - self.sigma**2 / 2
        return int(min(self.high, max(self.low, exp(rng.gauss(mu, self.sigma)))))


class PromptFamily(Protocol):
    """Makes the segments of one prompt."""

    def prompt(self, rng: Random, now: float) -> list[Segment]: ...


@dataclass
class Unique:
    """Prompts that have nothing in common."""

    lengths: Lengths

    def prompt(self, rng: Random, now: float) -> list[Segment]:
        return [(new_text(), self.lengths.draw(rng))]


class SharedPrefixes:
    """``count`` system prompts, used with Zipf's law of exponent ``skew``, each followed by a text of its own."""

    def __init__(self, rng: Random, count: int, prefix: Lengths, tail: Lengths, skew: float = 1.0) -> None:
        self.tail = tail
        self._prefix = prefix
        self._skew = skew
        self._prefixes: list[Segment] = []
        self._weights: list[float] = []
        self.grow(rng, count)

    def grow(self, rng: Random, count: int) -> None:
        """Bring the number of distinct prefixes to ``count``; the old ones stay."""
        while len(self._prefixes) < count:
            self._prefixes.append((new_text(), self._prefix.draw(rng)))
            rank = len(self._prefixes)
            self._weights.append((self._weights[-1] if self._weights else 0.0) + 1.0 / rank**self._skew)

    @property
    def working_set(self) -> int:
        """Tokens of all prefixes together."""
        return sum(length for _identity, length in self._prefixes)

    def prompt(self, rng: Random, now: float) -> list[Segment]:
        prefix = rng.choices(self._prefixes, cum_weights=self._weights)[0]
        return [prefix, (new_text(), self.tail.draw(rng))]


@dataclass
class UnstablePrefix:
    """A shared system prompt with a stamp ``stable`` tokens from its start that is new in every request."""

    stable: int
    rest: int
    tail: Lengths
    stamp: int = 9
    _head: int = field(default_factory=new_text)
    _rest: int = field(default_factory=new_text)

    def prompt(self, rng: Random, now: float) -> list[Segment]:
        return [
            (self._head, self.stable),
            (new_text(), self.stamp),
            (self._rest, self.rest),
            (new_text(), self.tail.draw(rng)),
        ]


class Mixed:
    """One of several families, by weight."""

    def __init__(self, *parts: tuple[float, PromptFamily]) -> None:
        self.weights = [weight for weight, _family in parts]
        self.families = [family for _weight, family in parts]

    def prompt(self, rng: Random, now: float) -> list[Segment]:
        return rng.choices(self.families, self.weights)[0].prompt(rng, now)


@dataclass(frozen=True, slots=True)
class Turns:
    """Conversations: after each answer the user goes on with probability ``again``, ``think`` seconds later."""

    again: float
    think: Lengths
    follow_up: Lengths
    limit: int = 24_000


@dataclass(frozen=True, slots=True)
class Wave:
    """Load is never flat: the rate swings by ``share`` of itself with this period (seconds)."""

    share: float
    period: float
    phase: float

    def at(self, now: float) -> float:
        return 1 + self.share * sin(tau * now / self.period + self.phase)


@dataclass
class Stream:
    """Poisson arrivals at ``rate`` requests a second into whichever engine ``target`` answers with.

    ``patience`` is the mean number of seconds after which an impatient client (share ``impatient``) hangs up.
    ``bursts`` > 1 makes arrivals come in groups of that mean size, ``evenness`` > 1 makes the gaps more equal (gamma).
    """

    rate: float
    family: PromptFamily
    output: Lengths
    rng: Random
    max_tokens: int = 2048
    bursts: float = 1.0
    evenness: float = 1.0
    impatient: float = 0.0
    patience: float = 8.0
    turns: Turns | None = None
    fetch: bool = False
    on_done: Callable[[float, Request], None] | None = None
    scale: float = 1.0
    wave: Wave | None = None
    _epoch: int = 0
    _engine: Engine | None = None

    def attach(self, engine: Engine | None, now: float) -> None:
        """Send to ``engine`` from now on (None: nobody listens)."""
        self._engine = engine
        self._redraw(now)

    def set_scale(self, scale: float, now: float) -> None:
        """Multiply the rate from now on."""
        self.scale = scale
        self._redraw(now)

    def _redraw(self, now: float) -> None:
        self._epoch += 1
        self._plan(now)

    def _plan(self, now: float) -> None:
        rate = self.rate * self.scale / self.bursts * (self.wave.at(now) if self.wave else 1.0)
        if self._engine is None or rate <= 0:
            return
        epoch = self._epoch
        gap = self.rng.gammavariate(self.evenness, 1 / (self.evenness * rate))
        self._engine.timers.at(now + gap, lambda time: self._arrive(time, epoch))

    def _arrive(self, now: float, epoch: int) -> None:
        if epoch != self._epoch:
            return
        size = 1
        while self.bursts > 1 and self.rng.random() > 1 / self.bursts:
            size += 1
        for _ in range(size):
            self.send(now, self.family.prompt(self.rng, now))
        self._plan(now)

    def send(self, now: float, segments: Sequence[Segment]) -> None:
        """One request with this prompt."""
        engine = self._engine
        if engine is None:
            return
        wanted = self.output.draw(self.rng)
        request = Request(
            segments=list(segments),
            prompt=sum(length for _identity, length in segments),
            output=min(wanted, self.max_tokens),
            max_tokens=self.max_tokens,
            arrival=now,
            stop=wanted < self.max_tokens,
            fetch=self.fetch,
            turn=self._after,
        )
        engine.submit(request)
        if self.impatient and self.rng.random() < self.impatient:
            engine.timers.at(now + self.rng.expovariate(1 / self.patience), lambda _time: engine.abort(request))

    def _after(self, now: float, request: Request) -> None:
        if self.on_done is not None:
            self.on_done(now, request)
        turns, engine = self.turns, self._engine
        if turns is None or engine is None or request.length > turns.limit or self.rng.random() > turns.again:
            return
        output, _span = request.segments[-1]
        history = [*request.segments[:-1], (output, request.generated)]
        text = (new_text(), turns.follow_up.draw(self.rng))
        engine.timers.at(now + turns.think.draw(self.rng), lambda time: self.send(time, [*history, text]))
