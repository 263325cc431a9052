"""One request, from arrival to its last token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from .prefix import KeyChain, Segment


class Stage(Enum):
    """Where a request stands; the first four hold a place in a queue or a batch."""

    WAITING = "waiting"
    FETCHING = "fetching"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """Lengths are tokens, times seconds of the simulation.

    ``output`` is how many tokens it will generate, ``max_tokens`` what the client allowed. ``fetch`` = True: the
    prompt's KV comes from another engine. ``turn`` is called when it is done, with the time.
    """

    segments: list[Segment]
    prompt: int
    output: int
    max_tokens: int
    arrival: float
    stop: bool = True
    fetch: bool = False
    turn: Callable[[float, Request], None] | None = None

    stage: Stage = Stage.WAITING
    chain: KeyChain | None = None
    blocks: list[int] = field(default_factory=list)
    published: int = 0
    computed: int = 0
    generated: int = 0
    prefilled: int = 0
    preemptions: int = 0
    epoch: int = 0
    start_step: int = 0
    start_computed: int = 0
    start_generated: int = 0
    first_scheduled: float = -1.0
    first_token: float = -1.0
    last_token: float = -1.0

    @property
    def length(self) -> int:
        """Tokens of the sequence so far: prompt and output."""
        return self.prompt + self.generated

    @property
    def in_batch(self) -> bool:
        return self.stage in (Stage.PREFILL, Stage.DECODE)
