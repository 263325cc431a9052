"""A paged pool of KV blocks: reference counts, content keys, and free blocks in eviction order."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

NO_KEY = -1
"""Key of a block whose content is not addressable (empty, or not yet full)."""


class PoolIntegrityError(AssertionError):
    """The pool's books do not balance; the message carries the numbers."""


@dataclass(slots=True)
class Residence:
    """Life of one sampled block: when it was filled and its last uses (seconds)."""

    born: float
    uses: deque[float] = field(default_factory=lambda: deque(maxlen=4))


EvictionHook = Callable[[float, float, list[float]], None]
"""Called with lifetime, idle time before eviction and reuse gaps, all in seconds."""


class BlockPool:
    """``num_blocks`` blocks, block 0 kept back as the null block, as vLLM V1 does.

    A free block keeps its content key until it is taken for something else: eviction is lazy, least recently
    freed first. ``sample_every`` = n follows the life of every n-th allocation (0: none).
    """

    def __init__(self, num_blocks: int, sample_every: int = 0, on_evict: EvictionHook | None = None) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs at least 2 blocks, got {num_blocks}")
        self.num_blocks = num_blocks
        self.refs = [0] * num_blocks
        self.keys = [NO_KEY] * num_blocks
        self.cached: dict[int, int] = {}
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self.evictions = 0
        self.leaked = 0
        self._sample_every = sample_every
        self._allocations = 0
        self._on_evict = on_evict
        self._residences: dict[int, Residence] = {}

    @property
    def capacity(self) -> int:
        """Blocks that requests can hold."""
        return self.num_blocks - 1

    @property
    def free_blocks(self) -> int:
        return len(self.free)

    @property
    def usage(self) -> float:
        """Share of the capacity that somebody references, 0 to 1; cached blocks without a reference are free."""
        return 1.0 - len(self.free) / self.capacity

    def allocate(self, count: int, now: float) -> list[int]:
        """Take ``count`` free blocks, evicting what they cached; raises ValueError when there are not enough."""
        if count > len(self.free):
            raise ValueError(f"{count} blocks wanted, {len(self.free)} free")
        taken = []
        for _ in range(count):
            block, _nothing = self.free.popitem(last=False)
            if self.keys[block] != NO_KEY:
                self._evict(block, now)
            self.refs[block] = 1
            taken.append(block)
            if self._sample_every:
                self._allocations += 1
                if self._allocations % self._sample_every == 0:
                    self._residences[block] = Residence(born=now)
        return taken

    def publish(self, block: int, key: int) -> None:
        """Give a full block its content key. Equal content that is cached already stays the one that is found."""
        if self.keys[block] != NO_KEY:
            raise PoolIntegrityError(f"block {block} has key {self.keys[block]} already, {key} was to be its key")
        if key not in self.cached:
            self.cached[key] = block
            self.keys[block] = key

    def touch(self, block: int, now: float) -> None:
        """Take one more reference on a cached block."""
        if self.refs[block] == 0:
            del self.free[block]
        self.refs[block] += 1
        if self._sample_every:
            residence = self._residences.get(block)
            if residence is not None:
                residence.uses.append(now)

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference on each. The tail of a sequence is freed first, so that its head is evicted last."""
        for block in reversed(blocks):
            left = self.refs[block] - 1
            if left < 0:
                raise PoolIntegrityError(f"block {block} released with {self.refs[block]} references")
            self.refs[block] = left
            if left == 0:
                self.free[block] = None

    def leak(self, blocks: Sequence[int]) -> None:
        """Forget the holder of these references without dropping them: the fault ``pool-leak``."""
        self.leaked += len(blocks)

    def _evict(self, block: int, now: float) -> None:
        del self.cached[self.keys[block]]
        self.keys[block] = NO_KEY
        self.evictions += 1
        residence = self._residences.pop(block, None)
        if residence is not None and self._on_evict is not None:
            uses = [residence.born, *residence.uses]
            gaps = [later - earlier for earlier, later in pairwise(uses)]
            self._on_evict(now - residence.born, now - uses[-1], gaps)

    def check_integrity(self, held: Sequence[Sequence[int]] = ()) -> None:
        """Raise PoolIntegrityError unless every block is free or referenced, as often as its holders say.

        ``held`` lists the blocks of each holder; leaked references have none.
        """
        idle = sum(1 for count in self.refs[1:] if count == 0)
        if idle != len(self.free):
            raise PoolIntegrityError(f"{idle} blocks without a reference, {len(self.free)} in the free list")
        for block in self.free:
            if self.refs[block] or block == 0:
                raise PoolIntegrityError(f"free block {block} has {self.refs[block]} references")
        wanted = sum(len(blocks) for blocks in held) + self.leaked
        if sum(self.refs) != wanted:
            raise PoolIntegrityError(f"{sum(self.refs)} references, {wanted} held or leaked")
        for key, block in self.cached.items():
            if self.keys[block] != key:
                raise PoolIntegrityError(f"key {key} points to block {block}, which has key {self.keys[block]}")
        keyed = sum(1 for key in self.keys if key != NO_KEY)
        if keyed != len(self.cached):
            raise PoolIntegrityError(f"{keyed} keyed blocks, {len(self.cached)} index entries")
