"""The block pool of a simulated shard: a bitmap, chunks of blocks, holds, leases and LRU eviction."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from .store_meters import ShardMeters

Run = tuple[int, int]
"""(first block, number of blocks)."""


class RefusedError(Exception):
    """A put that found no room; ``reason`` is one of the page's."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(eq=False, slots=True)
class Chunk:
    """The blocks of one window: ``tokens`` of their slots are filled; ``holders`` are sessions."""

    key: str
    runs: list[Run]
    tokens: int
    last_use: float
    holders: set[int] = field(default_factory=set)
    leased_until: float = float("-inf")
    pins: int = 0
    blocks: int = field(init=False)
    """How many; asked so often that it is not summed each time. Runs may move, not grow."""

    def __post_init__(self) -> None:
        self.blocks = sum(length for _first, length in self.runs)


class StorePool:
    """``blocks`` blocks of ``block_tokens`` slots; with ``one_run`` an allocation must be a single run."""

    def __init__(self, blocks: int, block_tokens: int, meters: ShardMeters, *, one_run: bool = False) -> None:
        self.capacity, self.block_tokens, self.one_run = blocks, block_tokens, one_run
        self.meters = meters
        self.bitmap = bytearray(blocks)
        self.free = blocks
        self.chunks: dict[str, Chunk] = {}
        self.ghosts: OrderedDict[str, str] = OrderedDict()
        self._idle: OrderedDict[str, Chunk] = OrderedDict()

    def store(self, key: str, tokens: int, holder: int | None, now: float) -> Chunk:
        """Allocate the blocks of ``tokens`` tokens under a key. Raises RefusedError."""
        count = -(-tokens // self.block_tokens)
        runs = self._allocate(count, now)
        self.meters.allocations += 1
        self.meters.allocation_blocks += count
        self.meters.allocation_runs.observe(float(len(runs)))
        for first, length in runs:
            self.bitmap[first : first + length] = b"\1" * length
        self.free -= count
        chunk = Chunk(key, runs, tokens, now)
        self.chunks[key] = chunk
        self.ghosts.pop(key, None)
        if holder is None:
            self._idle[key] = chunk
        else:
            chunk.holders.add(holder)
        return chunk

    def _allocate(self, count: int, now: float) -> list[Run]:
        if count > self.capacity:
            raise RefusedError("no_space")
        while self.free < count:
            if not self._evict(now, "capacity"):
                raise RefusedError("no_space")
        found = self.bitmap.find(bytes(count))
        while found < 0 and self.one_run:
            if not self._evict(now, "run"):
                raise RefusedError("no_run")
            found = self.bitmap.find(bytes(count))
        return [(found, count)] if found >= 0 else self._scattered(count)

    def _scattered(self, count: int) -> list[Run]:
        """The longest free runs first."""
        taken: list[Run] = []
        for length, first in sorted(((length, first) for first, length in self.free_runs()), reverse=True):
            part = min(length, count)
            taken.append((first, part))
            count -= part
            if not count:
                break
        return taken

    def free_runs(self) -> list[Run]:
        found: list[Run] = []
        at = self.bitmap.find(0)
        while at >= 0:
            end = self.bitmap.find(1, at)
            end = self.capacity if end < 0 else end
            found.append((at, end - at))
            at = self.bitmap.find(0, end)
        return found

    def _evict(self, now: float, reason: str) -> bool:
        for key, chunk in self._idle.items():
            if chunk.leased_until <= now and not chunk.pins:
                self.meters.evicted_blocks[reason] += chunk.blocks
                self.meters.idle_before_evict.observe(now - chunk.last_use, chunk.blocks)
                self.drop(key, "evicted")
                return True
        return False

    def drop(self, key: str, reason: str) -> None:
        """Free a chunk; the ghost list remembers why."""
        chunk = self.chunks.pop(key)
        self._idle.pop(key, None)
        for first, length in chunk.runs:
            self.bitmap[first : first + length] = bytes(length)
        self.free += chunk.blocks
        self.ghosts[key] = reason
        while len(self.ghosts) > 20_000:
            self.ghosts.popitem(last=False)

    def touch(self, chunk: Chunk, now: float) -> None:
        self.meters.reuse_gap.observe(now - chunk.last_use, chunk.blocks)
        chunk.last_use = now
        if chunk.key in self._idle:
            self._idle.move_to_end(chunk.key)

    def hold(self, chunk: Chunk, holder: int) -> None:
        chunk.holders.add(holder)
        self._idle.pop(chunk.key, None)

    def release(self, chunk: Chunk, holder: int, *, expired: bool) -> None:
        """A session lets go: its own blocks leave when it expired, and stay cached when it was closed."""
        chunk.holders.discard(holder)
        if chunk.holders or chunk.key not in self.chunks:
            return
        if expired and not chunk.pins:
            self.drop(chunk.key, "expired")
        else:
            self._idle[chunk.key] = chunk

    def states(self, now: float) -> dict[str, float]:
        """Blocks by state: leased or pinned before used before cached."""
        found = {"free": float(self.free), "reserved": 0.0, "cached": 0.0, "used": 0.0, "leased": 0.0}
        for chunk in self.chunks.values():
            leased = chunk.pins or chunk.leased_until > now
            found["leased" if leased else "used" if chunk.holders else "cached"] += chunk.blocks
        return found

    def token_slots(self) -> dict[str, float]:
        valid = sum(chunk.tokens for chunk in self.chunks.values())
        return {"valid": float(valid), "tail_waste": float((self.capacity - self.free) * self.block_tokens - valid)}
