"""Keys and bytes of a trace's windows: made from hash ids alone, so that every get can be checked against them.

A trace says nothing of tokens; a hash id already stands for a prefix. Its digest is the id spread over 24 bytes by a
bijection of 64 bits (splitmix64's finaliser), so that no two ids share one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvstore.errors import BadRequest
from kvstore.header import Bytes
from kvstore.keys import DIGEST_BYTES, Keys
from kvstore.layout import Layout
from kvstore.replay.trace import WINDOW_TOKENS, Request

_STEP = np.uint64(0x9E3779B97F4A7C15)
_A = np.uint64(0xBF58476D1CE4E5B9)
_B = np.uint64(0x94D049BB133111EB)

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]


def layout(block_tokens: int, block_bytes: int | None = None, *, model_id: str = "trace") -> Layout:
    """One layer, one head group, one byte an element: the smallest block of `block_tokens`, or one of `block_bytes`.

    Raises `BadRequest` when the bytes are no multiple of what K and V of so many tokens need, or of a 64-bit word.
    """
    smallest = 2 * block_tokens
    size = block_bytes or smallest
    if block_tokens < 1 or WINDOW_TOKENS % block_tokens:
        raise BadRequest(f"--block-tokens must divide {WINDOW_TOKENS}, not be {block_tokens}")
    if size % smallest or size % 8:
        raise BadRequest(
            f"--block-bytes must be a multiple of {np.lcm(smallest, 8)} (K and V of {block_tokens} tokens, in 64-bit "
            f"words), not {size}"
        )
    return Layout(
        model_id, head_dim=size // smallest, block_tokens=block_tokens, window_tokens=WINDOW_TOKENS, dtype="uint8"
    )


class Content:
    """What the blocks of a request are called and hold, under `layout`."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.window_blocks = layout.window_blocks
        self._words = np.arange(layout.block_bytes // 8, dtype=np.uint64) * _STEP

    def counts(self, request: Request) -> Ints:
        """Blocks of each window `[windows]`: all of it, or what the tokens of the last one need."""
        return np.asarray(-(-request.valid() // self.layout.block_tokens), np.int64)

    def keys(self, request: Request) -> Keys:
        """`[blocks, 4]`, in order: `counts` blocks a window."""
        counts = self.counts(request)
        window, block = self._places(counts)
        number = request.windows[window] * self.window_blocks + block
        keys = np.empty((len(window), 4), np.uint64)
        keys[:, 0] = _scatter(number.astype(np.uint64))
        keys[:, 1] = _scatter(keys[:, 0])
        keys[:, 2] = _scatter(keys[:, 1])
        keys[:, 3] = (window * self.window_blocks + block).astype(np.uint64) << np.uint64(32)
        return keys

    def valid(self, request: Request) -> Ints:
        """Valid tokens of each block `[blocks]`."""
        window, block = self._places(self.counts(request))
        tokens = request.valid()[window] - block * self.layout.block_tokens
        return np.asarray(np.minimum(tokens, self.layout.block_tokens), np.int64)

    @staticmethod
    def _places(counts: Ints) -> tuple[Ints, Ints]:
        """The window of each block, and its number in there."""
        window = np.repeat(np.arange(len(counts)), counts)
        return window, np.arange(len(window)) - np.repeat(np.cumsum(counts) - counts, counts)

    @staticmethod
    def chains(keys: Keys) -> Bytes:
        """The digests in `keys`: `[n, 24]`."""
        return np.ascontiguousarray(keys).view(np.uint8).reshape(len(keys), 32)[:, :DIGEST_BYTES]

    def data(self, keys: Keys) -> Bytes:
        """`[n, block_bytes]`: what blocks of these keys hold."""
        with np.errstate(over="ignore"):
            words: Words = keys[:, 1:2] + self._words
        return words.view(np.uint8).reshape(len(keys), self.layout.block_bytes)

    def wrong(self, keys: Keys, data: Bytes) -> int:
        """How many rows of `data` are not what their keys say."""
        return int(np.count_nonzero((data != self.data(keys)).any(axis=1)))


def _scatter(words: Words) -> Words:
    with np.errstate(over="ignore"):
        mixed = words + _STEP
        mixed = (mixed ^ mixed >> np.uint64(30)) * _A
        mixed = (mixed ^ mixed >> np.uint64(27)) * _B
        return np.asarray(mixed ^ mixed >> np.uint64(31), np.uint64)
