"""Prefixes that the prompts of a trace share with earlier ones, and what whole blocks lose of them.

A block is shared whole or not at all, so of a shared prefix of p tokens `p mod B` are computed again. A trace in
Mooncake's format tells prefixes in windows of 512 tokens. How far into the next window they go it tells of a turn that
continues a conversation: its prompt repeats the one before it, whose length is known. For the others it is taken as
uniform over the window (all its places are equally likely), which makes `(B − 1) / 2` tokens on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvstore.replay.conversations import conversations
from kvstore.replay.oracle import prefix_length
from kvstore.replay.trace import WINDOW_TOKENS, Request

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sharing:
    """Of each request `[n]`: it shares at least `least` tokens, and `room` is the number of places at which the prefix
    may end: `least`, … `least + room − 1`, equally likely (1: exactly `least`)."""

    least: Tokens
    room: Tokens

    @property
    def tokens(self) -> float:
        """Tokens of all shared prefixes, as expected."""
        return float(np.sum(self.least + (self.room - 1) / 2))

    def lost(self, block_tokens: int) -> float:
        """Of these the tokens behind the last whole block: `p mod B`, as expected over the places."""
        behind = _remainders(self.least + self.room, block_tokens) - _remainders(self.least, block_tokens)
        return float(np.sum(behind / self.room))

    def loss(self, block_tokens: int) -> float | None:
        """The share of the shared tokens that is lost; None when nothing is shared."""
        tokens = self.tokens
        return self.lost(block_tokens) / tokens if tokens else None

    def blocks(self, block_tokens: int) -> float:
        """Whole blocks of all shared prefixes."""
        return (self.tokens - self.lost(block_tokens)) / block_tokens

    def windows(self) -> float:
        """Windows that all shared prefixes reach into, as expected; one of p tokens reaches into `ceil(p / 512)`."""
        last = self.least + self.room - 1
        reached = _ceilings(last, WINDOW_TOKENS) - _ceilings(self.least - 1, WINDOW_TOKENS)
        return float(np.sum(reached / self.room))


def sharing_of(requests: Sequence[Request]) -> Sharing:
    """What each request shares with those before it, were nothing ever forgotten; at most all but its last token."""
    seen: set[int] = set()
    previous: dict[int, Request] = {}
    least, room = np.zeros(len(requests), np.int64), np.ones(len(requests), np.int64)
    for place, (request, number) in enumerate(zip(requests, conversations(requests), strict=True)):
        windows = request.windows.tolist()
        matched = prefix_length([window in seen for window in windows])
        least[place], room[place] = _prefix(request, matched, previous.get(number))
        seen.update(windows)
        previous[number] = request
    return Sharing(least, room)


def _prefix(request: Request, matched: int, before: Request | None) -> tuple[int, int]:
    """Least shared tokens and places at which the prefix may end, from the number of matched windows."""
    most = request.input_tokens - 1
    if matched == len(request.windows):
        return most, 1
    if matched == 0:
        return 0, 1
    whole = matched * WINDOW_TOKENS
    if before is not None and before.input_tokens // WINDOW_TOKENS == matched and before.input_tokens <= most:
        return before.input_tokens, 1
    return whole, min(WINDOW_TOKENS, most - whole + 1)


def _remainders(n: Tokens, block_tokens: int) -> Tokens:
    """The sum of k mod B for k = 0 … n − 1."""
    whole, rest = n // block_tokens, n % block_tokens
    return whole * (block_tokens * (block_tokens - 1) // 2) + rest * (rest - 1) // 2


def _ceilings(n: Tokens, size: int) -> Tokens:
    """The sum of ceil(k / size) for k = 1 … n; nothing for n < 1."""
    whole: Tokens = np.maximum(n, 0) // size
    rest: Tokens = np.maximum(n, 0) % size
    return size * whole * (whole + 1) // 2 + rest * (whole + 1)
