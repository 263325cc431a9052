"""Content keys of blocks, and the prefix cache that looks them up.

A token is a pair (segment, offset); a prompt is a list of segments. Two prompts share a prefix exactly as far as
their segments do, so nothing has to be hashed and no collision can pass for a hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .pool import BlockPool

Segment = tuple[int, int]
"""(identity of the text, tokens of it)."""

ROOT = 0
"""Parent key of a first block."""

_Piece = tuple[int, int, int]


class KeyTable:
    """Interns (parent key, content of the block) as a small integer: an exact chain digest."""

    def __init__(self) -> None:
        self._keys: dict[tuple[int, _Piece | tuple[_Piece, ...]], int] = {}

    def key(self, parent: int, content: _Piece | tuple[_Piece, ...]) -> int:
        identity = (parent, content)
        found = self._keys.get(identity)
        if found is None:
            found = self._keys[identity] = len(self._keys) + 1
        return found


class KeyChain:
    """The keys of a sequence's full blocks, computed as far as somebody asked."""

    __slots__ = ("_block_tokens", "_index", "_offset", "_segments", "_table", "keys")

    def __init__(self, table: KeyTable, segments: Sequence[Segment], block_tokens: int) -> None:
        self._table = table
        self._segments = segments
        self._block_tokens = block_tokens
        self._index = 0
        self._offset = 0
        self.keys: list[int] = []

    def upto(self, blocks: int) -> list[int]:
        """The keys of at least the first ``blocks`` blocks (fewer when the text ends before)."""
        keys = self.keys
        while len(keys) < blocks:
            content = self._next_block()
            if content is None:
                break
            keys.append(self._table.key(keys[-1] if keys else ROOT, content))
        return keys

    def _next_block(self) -> _Piece | tuple[_Piece, ...] | None:
        left = self._block_tokens
        pieces: list[_Piece] = []
        while left:
            if self._index == len(self._segments):
                return None
            identity, length = self._segments[self._index]
            take = min(left, length - self._offset)
            if take:
                pieces.append((identity, self._offset, take))
            self._offset += take
            left -= take
            if self._offset == length:
                self._index += 1
                self._offset = 0
        return pieces[0] if len(pieces) == 1 else tuple(pieces)


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

    def match(self, chain: KeyChain, tokens: int, count: bool = True) -> list[int]:
        """Blocks of the longest cached prefix; at least the last of ``tokens`` tokens is left to compute.

        ``count`` = False leaves the truth alone (a look-up that the engine does not count either).
        """
        if not self.enabled:
            return []
        whole = (tokens - 1) // self.block_tokens
        keys = chain.upto(whole)
        cached = self.pool.cached
        found: list[int] = []
        for index in range(min(whole, len(keys))):
            block = cached.get(keys[index])
            if block is None:
                break
            found.append(block)
        if count:
            self._account(keys, whole, len(found), tokens)
        return found

    def publish(self, block: int, key: int) -> None:
        if self.enabled:
            self.pool.publish(block, key)
            self._ever.add(key)

    def _account(self, keys: Sequence[int], whole: int, found: int, tokens: int) -> None:
        known = found
        ever = self._ever
        while known < whole and keys[known] in ever:
            known += 1
        self.truth.looked_up += tokens
        self.truth.hit += found * self.block_tokens
        self.truth.would_hit += known * self.block_tokens
        self.truth.evicted_then_wanted += known - found
