"""A shard without processes: token chains in, blocks with recognisable bytes, a clock that the test moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvstore.arena import Arena
from kvstore.checks import Verdict, judge
from kvstore.header import sums
from kvstore.keys import Chain, block_keys, root_digest, tail_digest
from kvstore.layout import Layout
from kvstore.log import Log
from kvstore.messages import (
    Append,
    Durability,
    Envelope,
    Located,
    Lookup,
    OpenSession,
    Published,
    Put,
    TailMatch,
    TailMatched,
)
from kvstore.shard import Shard
from kvstore.shard.credits import Credits

LAYOUT = Layout("rig", head_dim=8, block_tokens=4, window_tokens=32, dtype="uint8")
TOKENS = LAYOUT.block_tokens
ROOT = root_digest(LAYOUT.model_id)


class Rig:
    """A shard, one client's staging arena, and the time."""

    def __init__(
        self,
        blocks: int = 64,
        *,
        log: Log | None = None,
        durability: Durability = Durability.NONE,
        credits: Credits | None = None,
        meters: Any = None,
    ) -> None:
        self.now_ms = 1_000
        self.shard = Shard.create(
            LAYOUT,
            blocks,
            now_ms=lambda: self.now_ms,
            log=log,
            durability=durability,
            credits=credits,
            meters=meters,
        )
        self._next = 0
        self.staging = Arena.create("kv-staging", 256, LAYOUT.slot_bytes, LAYOUT.block_bytes, pool=False)

    async def ask(self, message: Any, *, client: int = 1, clock: int = 0, deadline_ms: int = 5_000) -> Any:
        return await self.shard.answer(Envelope(clock, deadline_ms, client=client), message, self.staging)

    def stage(self, fills: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Fill the next staging slots, one byte value a block; slots and sums."""
        if self._next + len(fills) > len(self.staging):
            self._next = 0
        slots = np.arange(self._next, self._next + len(fills))
        self._next += len(fills)
        for slot, fill in zip(slots.tolist(), fills, strict=True):
            self.staging.data[slot] = fill
        return slots, sums(self.staging.data[slots])

    def put_message(self, tokens: Sequence[int], fills: Sequence[int] | None = None, **options: Any) -> Put:
        """The full blocks of a token chain."""
        chain = chain_of(tokens)
        keys = block_keys(chain.digests, 0, 0)
        slots, stated = self.stage(list(fills) if fills is not None else [fill_of(digest) for digest in chain.digests])
        return Put(keys, slots, stated, np.full(len(keys), TOKENS), columns(chain.digests), **options)

    async def put(self, tokens: Sequence[int], **options: Any) -> Published:
        return await self.ask(self.put_message(tokens, **options))

    async def open(self, **options: Any) -> int:
        return (await self.ask(OpenSession(**options))).session

    def append_message(
        self, session: int, tokens: Sequence[int], fill: int, expected: int, *, rows: int = 1, **options: Any
    ) -> Append:
        """The tail of a chain, or its last block where that is full; `rows` layers."""
        chain = chain_of(tokens)
        full = chain.tail_tokens == 0
        before = chain_of(tokens[: -TOKENS if full else len(tokens) - chain.tail_tokens])
        tail = list(tokens[len(before) :])
        digests = [chain_of([*tokens[: len(before)], *tail[: i + 1]]) for i in range(len(tail))]
        column = columns([one.digests[-1] if one.tail_tokens == 0 else one.tail_digests()[-1] for one in digests])
        slots, stated = self.stage([fill + row for row in range(rows)])
        return Append(
            session,
            tail_keys(tokens[: len(before)], session, rows),
            slots,
            stated,
            len(tail),
            np.full(rows, expected, np.uint64),
            column,
            np.concatenate(
                [block_keys(chain.digests[-1:], row, 0, first_index=len(chain.digests) - 1) for row in range(rows)]
            )
            if full
            else None,
            **options,
        )

    async def append(
        self, session: int, tokens: Sequence[int], fill: int, expected: int = 0, **options: Any
    ) -> Published:
        return await self.ask(self.append_message(session, tokens, fill, expected, **options))

    async def match(self, session: int, tokens: Sequence[int], rows: int = 1, lease_ms: int = 0) -> TailMatched:
        """What of the chain's tail behind its full blocks agrees."""
        chain = chain_of(tokens)
        before = tokens[: len(tokens) - chain.tail_tokens]
        return await self.ask(
            TailMatch(session, tail_keys(before, session, rows), columns(chain.tail_digests()), lease_ms=lease_ms)
        )

    async def lookup(self, tokens: Sequence[int], **options: Any) -> Located:
        return await self.ask(Lookup(keys_of(tokens), **options))

    def read(self, keys: np.ndarray, located: Located | Published) -> list[int | None]:
        """As a reader does: the fill byte of each block, None where the slot does not pass the checks."""
        found: list[int | None] = []
        for row, slot in enumerate(np.asarray(located.slot).tolist()):
            if slot < 0:
                found.append(None)
                continue
            copy = self.shard.pool.arena.slots[slot : slot + 1].copy()
            verdict = judge(copy, keys[row : row + 1], located.generation[row : row + 1], LAYOUT.block_bytes)[0]
            data = self.shard.pool.arena.data[slot]
            assert verdict != Verdict.OK or (data == data[0]).all()
            found.append(int(data[0]) if verdict == Verdict.OK else None)
        return found


def chain_of(tokens: Sequence[int]) -> Chain:
    chain = Chain(ROOT, TOKENS)
    chain.extend(list(tokens))
    return chain


def keys_of(tokens: Sequence[int]) -> np.ndarray:
    return block_keys(chain_of(tokens).digests, 0, 0)


def tail_keys(before: Sequence[int], session: int, rows: int = 1) -> np.ndarray:
    """Keys of the tail behind the full blocks of `before`, one a layer."""
    parent = chain_of(before)
    digest = tail_digest(parent.parent, session)
    return np.concatenate([block_keys([digest], row, 0, first_index=len(parent.digests)) for row in range(rows)])


def fill_of(digest: bytes) -> int:
    """What a block with this content holds."""
    return digest[0]


def columns(digests: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 24)
