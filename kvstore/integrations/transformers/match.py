"""What of a batch's tokens the store has the KV of, and how much of it a batch can use."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvstore.client import Client
from kvstore.errors import StoreError
from kvstore.integrations.transformers.columns import Columns
from kvstore.integrations.transformers.history import digests_after
from kvstore.keys import Chain
from kvstore.layout import Layout
from kvstore.locations import Locations

LEASE_MS = 30_000
"""Longer than any fetch: released as soon as it is done."""


@dataclass(slots=True)
class Found:
    """One row: `blocks` locates `[columns * full blocks]` (column by column), `tail` the session's partial block behind
    the first `whole` of them."""

    root: bytes
    digests: list[bytes]
    there: npt.NDArray[np.bool_]
    """`[layers, full blocks]`: all head groups of it are in the store."""
    blocks: Locations
    whole: int = 0
    agree: int = 0
    """Tokens of the tail that are ours too."""
    tail: Locations | None = None
    runs: npt.NDArray[np.int64] = field(init=False)
    """`[layers, full blocks]`: blocks that are there, without a gap, up to and including this one."""

    def __post_init__(self) -> None:
        self.count()

    def count(self) -> None:
        """Of what is there, how much hangs together."""
        blocks = np.arange(self.there.shape[1])
        gaps = np.where(self.there, -1, blocks)
        self.runs = np.asarray(blocks - np.maximum.accumulate(gaps, axis=1), np.int64)

    @property
    def parent(self) -> bytes:
        """The chain after the first `whole` blocks."""
        return self.digests[self.whole - 1] if self.whole else self.root


class Reach:
    """How far a row may be taken from the store, given the windows of its layers."""

    def __init__(self, layout: Layout, windows: Sequence[int | None]) -> None:
        self._size = layout.block_tokens
        # A window of 1 needs nothing of what was before; as found counts only what is there all the same.
        self._windows = [None if window is None else max(2, window) for window in windows]

    def first_blocks(self, tokens: int) -> list[int]:
        """The first block that each layer needs to go on after `tokens`: those in its window, and the one in part."""
        partial = tokens // self._size
        return [
            0 if window is None else min(max(0, tokens - window + 1) // self._size, partial) for window in self._windows
        ]

    def may(self, found: Found, tokens: int) -> bool:
        """Whether everything is there that `tokens` tokens need."""
        last = min(-(-tokens // self._size), found.whole)  # blocks of the chain that are used, wholly or in part
        if not last:
            return True
        need = last - np.array(self.first_blocks(tokens))
        return bool((found.runs[:, last - 1] >= need).all())

    def longest(self, found: Found, tokens: int) -> int:
        """The most tokens, up to `tokens`, that the row may be taken for: all of them, or whole blocks."""
        tokens = min(tokens, found.whole * self._size + found.agree)
        while tokens > 0 and not self.may(found, tokens):
            tokens = (tokens - 1) // self._size * self._size
        return max(tokens, 0)

    def common(self, rows: Sequence[Found | None], pads: Sequence[int], most: int) -> int:
        """Columns of a left-padded batch that every row has, at most `most`: the rows end in the same column."""
        columns = most
        while True:
            before = columns
            for found, pad in zip(rows, pads, strict=True):
                mine = 0 if found is None else self.longest(found, max(0, columns - pad))
                columns = min(columns, pad + mine)
            if columns == before:
                return columns


class Finder:
    """Looks rows up in a store; what is found is leased for `LEASE_MS`."""

    def __init__(self, client: Client, columns: Columns, root: bytes, reach: Reach, deadline_ms: int) -> None:
        self._client = client
        self._columns = columns
        self._root = root
        self._reach = reach
        self._deadline_ms = deadline_ms

    async def find(self, tokens: list[int], session: int) -> Found:
        """One row. Raises `StoreError`."""
        layout = self._client.layout
        size = layout.block_tokens
        chain = Chain(self._root, size)
        chain.extend(tokens)
        blocks = await self._client.lookup(
            self._columns.of(chain.digests).reshape(-1, 4),
            lease_ms=LEASE_MS,
            session=session,
            counted=True,
            deadline_ms=self._deadline_ms,
        )
        there = blocks.found.reshape(layout.layers, layout.head_groups, -1).all(axis=1)
        found = Found(self._root, chain.digests, np.asarray(there, np.bool_), blocks, len(chain.digests))
        found.whole = self._reach.longest(found, len(chain.digests) * size) // size
        behind = tokens[found.whole * size : (found.whole + 1) * size]
        if session and behind:
            keys = self._columns.tail(found.parent, session, found.whole)
            digests = digests_after(found.parent, behind)
            found.agree, found.tail = await self._client.match_tail(
                session, keys, digests, lease_ms=LEASE_MS, deadline_ms=self._deadline_ms
            )
        return found

    async def find_all(self, rows: Sequence[list[int]], sessions: Sequence[int]) -> list[Found | StoreError]:
        """Every row, side by side; one that could not be looked up has its error."""
        results = await asyncio.gather(
            *(self.find(tokens, session) for tokens, session in zip(rows, sessions, strict=True)),
            return_exceptions=True,
        )
        found: list[Found | StoreError] = []
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, StoreError):
                raise result
            found.append(result)
        return found
