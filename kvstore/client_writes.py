"""The writing half of a client: puts, appends, tails, removals."""

from __future__ import annotations

from typing import Any, SupportsInt

import numpy as np
import numpy.typing as npt

from kvstore import messages as m
from kvstore.arguments import (
    MOST_MS,
    as_blocks,
    clocks,
    counts,
    digest_rows,
    durability_of,
    key_columns,
    require_one_block_a_key,
    session_number,
    whole_number,
)
from kvstore.client_base import ClientBase, all_of, batches, enter, unanswered
from kvstore.errors import BadRequest
from kvstore.header import Bytes, Words
from kvstore.keys import Keys
from kvstore.locations import Locations
from kvstore.staging import Staged
from kvstore.transport import Ints


class Puts(ClientBase):
    """Blocks into the store, and out of it."""

    async def stage(self, n: int, *, deadline_ms: int | None = None) -> Staged:
        """A run of the staging arena to fill in place, for a `put` to one shard. `unstage` it, or put it."""
        return await self.staging.take(whole_number("n", n), self._deadline(deadline_ms))

    def unstage(self, run: Staged) -> None:
        """Raises `BadRequest` for a run that was put, or given back before."""
        staging = self.writes_of(run).staging
        staging.give(staging.claim(run))

    async def put(
        self,
        keys: Keys,
        blocks: npt.NDArray[Any] | Staged,
        *,
        valid: Ints | int | None = None,
        chains: npt.NDArray[np.uint8] | None = None,
        session: SupportsInt = 0,
        durability: m.Durability = m.Durability.NONE,
        one_run: bool = False,
        deadline_ms: int | None = None,
        trace: str = "",
    ) -> m.Published:
        """Publish blocks `[n, block_bytes]` (or `[n, *block_shape]`) under `keys` `[n, 4]`.

        Each shard pulls its part as one batch (several, where they are larger than the staging arena). `valid` and
        `chains` default to full blocks and the keys' own digests. After an error, what went to other shards or batches
        may have been published: a put of the same blocks again is harmless. Raises `PoolExhausted`, `NoRun`,
        `ChecksumMismatch`, `SessionUnknown`, `DeadlineExceeded`, `ShardUnavailable`, ….
        """
        keys = key_columns(keys)
        n = len(keys)
        most = self.layout.block_tokens
        filled = counts("valid", most if valid is None else valid, n, least=1, most=most)
        own = np.ascontiguousarray(keys).view(np.uint8).reshape(n, 32)[:, :24]
        ends = own if chains is None else digest_rows("chains", chains, n)
        holder, promise = session_number(session), durability_of(durability)
        data = blocks if isinstance(blocks, Staged) else as_blocks(blocks, self.layout)
        if len(data) != n:
            raise BadRequest(f"{n} keys and {len(data)} blocks: not one a key")
        deadline = self._deadline(deadline_ms)
        answer = unanswered(n)

        async def send(number: int, rows: Ints) -> None:
            part: Bytes | Staged = data if isinstance(data, Staged) or len(rows) == n else data[rows]

            def fill(run: Staged, data_sums: Words) -> m.Put:
                return m.Put(keys[rows], run.slots, data_sums, filled[rows], ends[rows], holder, promise, bool(one_run))

            done = await self.writes_of(data).send(self.shards.links[number], part, fill, deadline, trace)
            answer.slot[rows], answer.generation[rows] = done.slot, done.generation
            answer.clock[rows], answer.existed[rows] = done.clock, done.existed

        await all_of(send(number, rows) for number, rows in self._batches(keys, data, one_run))
        return answer

    def _batches(self, keys: Keys, data: Bytes | Staged, one_run: bool) -> list[tuple[int, Ints]]:
        """Rows by shard, cut so that a batch fits into the staging arena."""
        groups = self.shards.rows(self.shards.home(keys))
        everything = np.arange(len(keys))
        if isinstance(data, Staged):
            if len(groups) > 1:
                raise BadRequest("a staged run goes to one shard: these keys have several homes")
            return [(number, everything) for number, _ in groups]
        most = len(self.staging) if one_run else max(1, len(self.staging) // 2)
        cut = []
        for number, rows in groups:
            mine = everything if rows is None else rows
            if one_run and len(mine) > most:
                raise BadRequest(f"one run of {len(mine)} blocks does not fit into a staging arena of {most}")
            cut += [(number, mine[at : at + most]) for at in range(0, len(mine), most)]
        if len(cut) > len(groups):
            require_one_block_a_key(keys, data)
        return cut

    async def append(
        self,
        session: SupportsInt,
        keys: Keys,
        blocks: npt.NDArray[Any],
        *,
        valid: int,
        digests: npt.NDArray[np.uint8],
        expected: Words | int = 0,
        full_keys: Keys | None = None,
        durability: m.Durability = m.Durability.NONE,
        deadline_ms: int | None = None,
        trace: str = "",
    ) -> m.Published:
        """New versions of a session's tails (see `messages.Append`); all `keys` must have one home, or are sent home by
        home, each an append of its own. Raises `TailConflict`, `SessionUnknown`, and what `put` raises.

        A later get of these keys, by anybody, sees this append or what came after it with `min_clock=answer.need`."""
        keys = key_columns(keys)
        n = len(keys)
        data = as_blocks(blocks, self.layout)
        if len(data) != n:
            raise BadRequest(f"{n} keys and {len(data)} blocks: not one a key")
        seen = clocks("expected", expected, n)
        tokens = whole_number("valid", valid, least=1, most=self.layout.block_tokens)
        ends = digest_rows("digests", digests, tokens)
        holder, promise = session_number(session), durability_of(durability)
        if full_keys is not None and len(key_columns(full_keys, "full_keys")) != n:
            raise BadRequest(f"{n} keys and {len(full_keys)} full_keys")
        if n:
            self._saw(int(seen.max()))  # told by somebody else, perhaps: what follows it must be later
        deadline = self._deadline(deadline_ms)
        answer = unanswered(n)

        async def send(number: int, rows: Ints | None) -> None:
            rows = np.arange(n) if rows is None else rows

            def fill(run: Staged, data_sums: Words) -> m.Append:
                full = None if full_keys is None else full_keys[rows]
                return m.Append(holder, keys[rows], run.slots, data_sums, tokens, seen[rows], ends, full, promise)

            done = await self.writes.send(self.shards.links[number], data[rows], fill, deadline, trace)
            answer.slot[rows], answer.generation[rows] = done.slot, done.generation
            answer.clock[rows], answer.existed[rows] = done.clock, done.existed

        await all_of(send(number, rows) for number, rows in self.shards.rows(self._tail_home(keys, full_keys)))
        return answer

    def _tail_home(self, keys: Keys, full_keys: Keys | None) -> Ints:
        home = self.shards.home(keys)
        if full_keys is not None and len(self.shards) > 1 and (self.shards.home(full_keys) != home).any():
            raise BadRequest("a tail and its full block must have one home: use a head-group placement for appends")
        return home

    async def match_tail(
        self,
        session: SupportsInt,
        keys: Keys,
        digests: npt.NDArray[np.uint8],
        *,
        lease_ms: int = 0,
        deadline_ms: int | None = None,
    ) -> tuple[int, Locations]:
        """How many tokens of the session's tails `keys` agree with the asker's own chain, and where they are."""
        keys = key_columns(keys)
        holder, leased_ms = session_number(session), whole_number("lease_ms", lease_ms, most=MOST_MS)
        ends = digest_rows("digests", digests)
        deadline = self._deadline(deadline_ms)
        home = self.shards.home(keys)
        found = Locations.nowhere(keys, home)
        agree: list[int] = []

        async def ask(number: int, rows: Ints | None) -> None:
            mine = m.TailMatch(holder, keys if rows is None else keys[rows], ends, leased_ms)
            matched: m.TailMatched = await self.shards.links[number].call(mine, deadline)
            agree.append(matched.agree)
            enter(found, number, rows, matched.located)

        await all_of(ask(number, rows) for number, rows in self.shards.rows(home))
        return min(agree, default=0), found

    async def remove(
        self, keys: Keys, *, durability: m.Durability = m.Durability.NONE, deadline_ms: int | None = None
    ) -> npt.NDArray[np.bool_]:
        """Take keys out of the store; whether each was there."""
        keys, promise = key_columns(keys), durability_of(durability)
        deadline = self._deadline(deadline_ms)
        found = np.zeros(len(keys), np.bool_)

        async def ask(number: int, rows: Ints | None) -> None:
            for part in batches(rows, len(keys)):
                message = m.Remove(keys if part is None else keys[part], promise)
                removed: m.Removed = await self.shards.links[number].call(message, deadline)
                found[slice(None) if part is None else part] = removed.found

        await all_of(ask(number, rows) for number, rows in self.shards.rows(self.shards.home(keys)))
        return found
