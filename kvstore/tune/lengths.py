"""How long requests are, and what a block size does to them: exact sums over every step of every request.

A request with a prompt of i tokens and an output of o holds i tokens after its prefill (which says the first output
token) and one more after each of its o − 1 decode steps: the last token's KV is never made. Every step weighs alike.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from kvstore.errors import BadRequest
from kvstore.replay.trace import Request
from kvstore.tune.sharing import Sharing, sharing_of

Tokens = npt.NDArray[np.int64]

LONGEST = 1 << 24
"""Tokens of a prompt or an output that are believed: sums over steps stay exact below it."""

DRAWS = 4096


@dataclass(frozen=True, slots=True)
class Lengths:
    """`prompts` and `outputs` `[n]` tokens; `shared` says what of the prompts was there before, None: not known."""

    name: str
    prompts: Tokens
    outputs: Tokens
    shared: Sharing | None = None

    @property
    def steps(self) -> Tokens:
        """Decode steps of each request `[n]`."""
        return np.maximum(self.outputs - 1, 0)

    @property
    def final(self) -> Tokens:
        """Tokens held at the end of each request `[n]`."""
        return self.prompts + self.steps

    @property
    def attended(self) -> float:
        """Tokens whose KV all decode steps read: the sum of i + 1 … i + o − 1 over the requests."""
        return float(np.sum(_triangle(self.final) - _triangle(self.prompts), dtype=np.float64))

    def held(self) -> float:
        """Tokens held, summed over the moments of all requests (after the prefill, and after each decode step)."""
        return float(np.sum(_triangle(self.final) - _triangle(self.prompts - 1), dtype=np.float64))

    def empty(self, block_tokens: int) -> float:
        """Slots behind the last token, summed over the same moments: `ceil(n / B) · B − n` at n tokens."""
        moments = float(np.sum(self.steps + 1, dtype=np.float64))
        filled = _filled(self.final, block_tokens) - _filled(self.prompts - 1, block_tokens)
        return moments * block_tokens - float(np.sum(filled, dtype=np.float64))

    def tail_waste(self, block_tokens: int) -> float:
        """Share of the allocated slots that hold no token, over time (0 … 1)."""
        empty = self.empty(block_tokens)
        return empty / (empty + self.held())

    def mean_blocks(self, block_tokens: int) -> float:
        """Blocks that a request holds, over time (of one layer)."""
        moments = float(np.sum(self.steps + 1, dtype=np.float64))
        return (self.held() + self.empty(block_tokens)) / block_tokens / moments

    def tail_copies(self, block_tokens: int) -> float:
        """Tokens read and written by all appends, each of which writes its block's valid tokens into a fresh slot.

        An append that leaves r valid tokens in the tail reads r − 1 and writes r (docs/store.md: an old version lives
        until its leases end).
        """
        filled = _filled(self.final, block_tokens) - _filled(self.prompts, block_tokens)
        return float(np.sum(2 * filled - self.steps, dtype=np.float64))

    def allocations(self, block_tokens: int) -> float:
        """Calls of the allocator: one for each prompt, one for each block that an output begins."""
        grown = _blocks(self.final, block_tokens) - _blocks(self.prompts, block_tokens)
        return float(np.sum(grown + 1, dtype=np.float64))

    def blocks_read(self, block_tokens: int) -> float:
        """Entries of the block table that all decode steps read, for one layer and one KV head."""
        read = self.attended
        filled = _filled(self.final, block_tokens) - _filled(self.prompts, block_tokens)
        empty = float(np.sum(self.steps * block_tokens - filled, dtype=np.float64))
        return (read + empty) / block_tokens


def of_trace(name: str, requests: Sequence[Request]) -> Lengths:
    """The lengths of a trace, and which prefixes its prompts share. Raises `BadRequest` for lengths beyond belief."""
    prompts = _column(name, "input_length", [request.input_tokens for request in requests], least=1)
    outputs = _column(name, "output_length", [request.output_tokens for request in requests], least=0)
    return Lengths(name, prompts, outputs, sharing_of(requests))


def of_distribution(prompts: tuple[float, float], outputs: tuple[float, float]) -> Lengths:
    """Log-normal lengths from (mean in tokens, sigma of the logarithm), each by its quantiles; the same every time.

    The mean of a log-normal is exp(mu + sigma² / 2), so mu = ln(mean) − sigma² / 2. Outputs are dealt out at random
    (with a fixed seed): prompts and outputs are independent. Nothing is known of shared prefixes.
    """
    said = _quantiles(outputs)
    random.Random(0).shuffle(said)
    name = "log-normal, prompts {:g},{:g}, outputs {:g},{:g}".format(*prompts, *outputs)
    return Lengths(name, np.asarray(_quantiles(prompts), np.int64), np.asarray(said, np.int64))


def _quantiles(shape: tuple[float, float]) -> list[int]:
    mean, sigma = shape
    if sigma == 0:
        return [max(1, round(mean))] * DRAWS
    normal = NormalDist(np.log(mean) - sigma**2 / 2, sigma)
    drawn = np.exp([normal.inv_cdf((place + 0.5) / DRAWS) for place in range(DRAWS)])
    if drawn[-1] > LONGEST:
        raise BadRequest(
            f"log-normal {mean:g},{sigma:g}: its longest is {drawn[-1]:.3g} tokens, at most {LONGEST} can be"
        )
    return [max(1, round(float(length))) for length in drawn]


def _column(name: str, field: str, values: list[int], *, least: int) -> Tokens:
    for place, value in enumerate(values):
        if not least <= value <= LONGEST:
            raise BadRequest(f"{name}: request {place + 1}: {field} {value}: {least} … {LONGEST} tokens can be")
    return np.asarray(values, np.int64)


def _blocks(tokens: Tokens, block_tokens: int) -> Tokens:
    return -(-tokens // block_tokens)


def _triangle(n: Tokens) -> Tokens:
    """1 + 2 + … + n."""
    return n * (n + 1) // 2


def _filled(n: Tokens, block_tokens: int) -> Tokens:
    """Valid tokens of the last block at 1, 2, … n tokens, summed: whole blocks give 1 + … + B each."""
    whole, rest = n // block_tokens, n % block_tokens
    return whole * (block_tokens * (block_tokens + 1) // 2) + rest * (rest + 1) // 2
