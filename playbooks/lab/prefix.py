"""Content keys of blocks, and the prefix cache that looks them up.

A token is a pair (segment, offset); a prompt is a list of segments. Two prompts share a prefix exactly as far as
their segments do, so nothing has to be hashed and no collision can pass for a hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from .pool import BlockPool

Segment = tuple[int, int]
"""(identity of the text, tokens of it)."""

ROOT = 0
"""Parent key of a first block."""

_texts = count(1)


def new_text() -> int:
    """Identity of a text that nobody has used before. Only equality matters, so runs stay repeatable."""
    return next(_texts)


_Piece = tuple[int, int, int]


class KeyTable:
    """Interns chains of block contents as small integers: an exact chain digest.

    Blocks that lie wholly in one text follow from where that text was entered, so they are kept as *runs*; a block
    that spans texts is interned by its parent and its pieces.
    """

    def __init__(self) -> None:
        self._last = ROOT
        self._spans: dict[tuple[int, tuple[_Piece, ...]], int] = {}
        self._runs: dict[tuple[int, int, int], list[int]] = {}

    def span(self, parent: int, pieces: tuple[_Piece, ...]) -> int:
        """Key of one block made of several pieces (text, offset, tokens)."""
        identity = (parent, pieces)
        found = self._spans.get(identity)
        if found is None:
            self._last += 1
            found = self._spans[identity] = self._last
        return found

    def run(self, parent: int, text: int, offset: int, blocks: int) -> list[int]:
        """Keys of the first ``blocks`` blocks of ``text`` from ``offset`` on, after ``parent``."""
        keys = self._runs.setdefault((parent, text, offset), [])
        missing = blocks - len(keys)
        if missing > 0:
            keys.extend(range(self._last + 1, self._last + 1 + missing))
            self._last += missing
        return keys[:blocks]


class KeyChain:
    """The keys of a sequence's full blocks, computed as far as somebody asked."""

    __slots__ = ("_block_tokens", "_entry", "_index", "_offset", "_segments", "_table", "keys")

    def __init__(self, table: KeyTable, segments: Sequence[Segment], block_tokens: int) -> None:
        self._table = table
        self._segments = segments
        self._block_tokens = block_tokens
        self._index = 0
        self._offset = 0
        self._entry: tuple[int, int, int] | None = None
        self.keys: list[int] = []

    def upto(self, blocks: int) -> list[int]:
        """The keys of at least the first ``blocks`` blocks (fewer when the text ends before)."""
        keys = self.keys
        while len(keys) < blocks and self._index < len(self._segments):
            text, length = self._segments[self._index]
            whole = (length - self._offset) // self._block_tokens
            if whole:
                self._extend_run(text, min(whole, blocks - len(keys)))
            elif not self._cross():
                break
        return keys

    def _extend_run(self, text: int, blocks: int) -> None:
        """Go on in the run of this text: it is named by the parent and the offset where the text was entered."""
        keys = self.keys
        if self._entry is None:
            self._entry = (keys[-1] if keys else ROOT, self._offset, len(keys))
        parent, offset, first = self._entry
        done = len(keys) - first
        keys.extend(self._table.run(parent, text, offset, done + blocks)[done:])
        self._offset += blocks * self._block_tokens

    def _cross(self) -> bool:
        """One block over the end of a text; False when the sequence ends before the block is full."""
        left = self._block_tokens
        index, offset = self._index, self._offset
        pieces: list[_Piece] = []
        while left:
            if index == len(self._segments):
                return False
            text, length = self._segments[index]
            take = min(left, length - offset)
            if take:
                pieces.append((text, offset, take))
            offset += take
            left -= take
            if offset == length:
                index, offset = index + 1, 0
        self._index, self._offset, self._entry = index, offset, None
        self.keys.append(self._table.span(self.keys[-1] if self.keys else ROOT, tuple(pieces)))
        return True


@dataclass(slots=True)
class PrefixTruth:
    """What no engine exports: how much an infinite cache would have found (tokens, whole blocks only)."""

    looked_up: int = 0
    hit: int = 0
    would_hit: int = 0
    evicted_then_wanted: int = 0


class PrefixCache:
    """Longest cached prefix of a chain, and the memory of everything that was ever cached."""

    def __init__(self, pool: BlockPool, block_tokens: int, enabled: bool = True) -> None:
        self.pool = pool
        self.block_tokens = block_tokens
        self.enabled = enabled
        self.truth = PrefixTruth()
        self._ever: set[int] = set()

    def match(self, chain: KeyChain, tokens: int) -> list[int]:
        """Blocks of the longest cached prefix; at least the last of ``tokens`` tokens is left to compute."""
        if not self.enabled:
            return []
        whole = (tokens - 1) // self.block_tokens
        cached = self.pool.cached
        found: list[int] = []
        for key in chain.upto(whole)[:whole]:
            block = cached.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def publish(self, block: int, key: int) -> None:
        if self.enabled:
            self.pool.publish(block, key)
            self._ever.add(key)

    def account(self, chain: KeyChain, tokens: int, found: int) -> None:
        """Write down a look-up that found ``found`` blocks, and what an infinite cache would have found."""
        whole = (tokens - 1) // self.block_tokens
        keys = chain.upto(whole)
        whole = min(whole, len(keys))
        known = found
        while known < whole and keys[known] in self._ever:
            known += 1
        self.truth.looked_up += tokens
        self.truth.hit += found * self.block_tokens
        self.truth.would_hit += known * self.block_tokens
        self.truth.evicted_then_wanted += known - found
