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
    """One row: `blocks` locates `[columns * full blocks]` (column by column), `tail` the session's partial block."""

    tokens: list[int]
    digests: list[bytes]
    parent: bytes
    """The chain after the last full block."""
    there: npt.NDArray[np.bool_]
    """`[layers, full blocks]`: all head groups of it are in the store."""
    blocks: Locations
    agree: int = 0
    """Tokens of the tail that are ours too."""
    tail: Locations | None = None
    runs: npt.NDArray[np.int64] = field(init=False)
    """`[layers, full blocks]`: blocks that are there, without a gap, up to and including this one."""

    def __post_init__(self) -> None:
        self.count()

    def count(self) -> None:
        blocks = np.arange(self.there.shape[1])
        last_gap = np.maximum.accumulate(np.where(self.there, -1, blocks), axis=1) if len(blocks) else self.there
        self.runs = np.asarray(blocks - last_gap if len(blocks) else last_gap, np.int64)


async def find(
    client: Client, columns: Columns, layout: Layout, root: bytes, tokens: list[int], session: int, deadline_ms: int
) -> Found:
    """Look one row's chain up; what is found is leased for `LEASE_MS`. Raises `StoreError`."""
    chain = Chain(root, layout.block_tokens)
    chain.extend(tokens)
    keys = columns.of(chain.digests).reshape(-1, 4)
    lookup = client.lookup(keys, lease_ms=LEASE_MS, session=session, counted=True, deadline_ms=deadline_ms)
    if not session or not chain.tail_tokens:
        blocks = await lookup
        return Found(tokens, chain.digests, chain.parent, _there(blocks, layout), blocks)
    tail_keys = columns.tail(chain.parent, session, len(chain.digests))
    digests = digests_after(chain.parent, tokens[len(tokens) - chain.tail_tokens :])
    match = client.match_tail(session, tail_keys, digests, lease_ms=LEASE_MS, deadline_ms=deadline_ms)
    blocks, (agree, tail) = await asyncio.gather(lookup, match)
    return Found(tokens, chain.digests, chain.parent, _there(blocks, layout), blocks, agree, tail)


def _there(blocks: Locations, layout: Layout) -> npt.NDArray[np.bool_]:
    found = blocks.found.reshape(layout.layers, layout.head_groups, -1)
    return np.asarray(found.all(axis=1), np.bool_)


class Reach:
    """How far a row may be taken from the store, given the windows of its layers."""

    def __init__(self, layout: Layout, windows: Sequence[int | None]) -> None:
        self._size = layout.block_tokens
        self._windows = list(windows)

    def first_blocks(self, tokens: int) -> list[int]:
        """The first block that each layer needs to go on after `tokens`: those in its window, and the one in part."""
        partial = tokens // self._size
        return [
            0 if window is None else min(max(0, tokens - window + 1) // self._size, partial) for window in self._windows
        ]

    def may(self, found: Found, tokens: int) -> bool:
        """Whether everything is there that `tokens` tokens need."""
        whole = len(found.digests)
        last = min(-(-tokens // self._size), whole)  # blocks of the chain that are used, wholly or in part
        if not last:
            return True
        need = last - np.array(self.first_blocks(tokens))
        return bool((found.runs[:, last - 1] >= need).all())

    def longest(self, found: Found, tokens: int) -> int:
        """The most tokens, up to `tokens`, that the row may be taken for: all of them, or whole blocks."""
        tokens = min(tokens, len(found.digests) * self._size + found.agree)
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


async def find_all(
    client: Client,
    columns: Columns,
    layout: Layout,
    root: bytes,
    rows: Sequence[list[int]],
    sessions: Sequence[int],
    deadline_ms: int,
) -> list[Found | StoreError]:
    """`find` for every row, side by side; a row that could not be looked up has its error."""
    results = await asyncio.gather(
        *(
            find(client, columns, layout, root, tokens, session, deadline_ms)
            for tokens, session in zip(rows, sessions, strict=True)
        ),
        return_exceptions=True,
    )
    found: list[Found | StoreError] = []
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, StoreError):
            raise result
        found.append(result)
    return found
