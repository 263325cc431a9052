"""A shard's slots: who has them, until when, and who goes when room is needed.

One column a property, one row a slot or an extent (the run that one put got). An extent is evicted as a whole, so that
runs come back as runs. Recency is that of the extent; the victim is the oldest of a random sample (the approximation of
LRU that Redis documents for `maxmemory-policy`), and of all when the sample holds none that may go. Times are
milliseconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kvstore.arena import PoolArena
from kvstore.bitmap import Bitmap, Runs, SlotBitmap, runs_of
from kvstore.errors import NoRun, PoolExhausted
from kvstore.extents import Extents
from kvstore.header import FLAG_TAIL, HEADER, SUMMED_BYTES, sums
from kvstore.index import Index
from kvstore.keys import Keys, parts

LEASE_GRACE_MS = 50
"""A slot rests so long after a lease's end: the reader's own clock ends it earlier by its margin (policy)."""
_SAMPLE = 512
_GO_AT_ONCE = 32
"""One in so many of a sample goes at once. Replayed conversations in a pool of 10,000 windows (strict LRU: 0.211 prefix
hits) get 0.169 with a quarter of 48, 0.201 with 1/16 of 256, 0.206 with 1/32 of 512, for much the same work."""

Slots = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


class State(IntEnum):
    """What a slot is to an outsider; the first that holds of leased, used, cached."""

    FREE = 0
    RESERVED = 1
    CACHED = 2
    USED = 3
    LEASED = 4


class _Phase(IntEnum):
    FREE = 0
    RESERVED = 1
    PUBLISHED = 2
    RESTING = 3
    """Out of the index, but a lease may still run."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """Keys that made room: `keys [n, 4]` from `slots [n]`, their idle time in ms, `reason` capacity or run."""

    keys: Keys
    slots: Slots
    idle_ms: Slots
    reason: str


class Pool:
    """`len(arena)` slots. Not for several threads; only its owner writes into the arena."""

    def __init__(
        self,
        arena: PoolArena,
        index: Index,
        *,
        bitmap: SlotBitmap | None = None,
        window_blocks: int | None = None,
        seed: int = 0,
    ) -> None:
        count = len(arena)
        self._window_blocks = window_blocks
        self.arena = arena
        self.index = index
        self.bitmap: SlotBitmap = bitmap or Bitmap(count)
        self._phase = np.zeros(count, np.uint8)
        self._generation = np.zeros(count, np.uint64)
        self._clock = np.zeros(count, np.uint64)
        self._valid = np.zeros(count, np.int64)
        self._keys = np.zeros((count, 4), np.uint64)
        self._slot_holds = np.zeros(count, np.int32)
        self._extents = Extents(count)
        self._resting: list[Slots] = []
        self._evicted: list[Evicted] = []
        self._reuse_gaps: list[Slots] = []
        self._random = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self.arena)

    # --- room ---------------------------------------------------------------------------------------------------

    def reserve(self, n: int, *, one_run: bool = False, now_ms: int) -> Slots:
        """`n` slots to write into, ascending; evicts what may go. `PoolExhausted` and `NoRun` take nothing."""
        slots = self.bitmap.allocate(n, one_run=one_run)
        if slots is None:
            slots = self._make_room(n, one_run, now_ms)
        self._phase[slots] = _Phase.RESERVED
        self._generation[slots] += np.uint64(1)
        self.arena.headers["generation"][slots] = self._generation[slots]
        return slots

    def abandon(self, slots: Slots) -> None:
        """Reserved slots go back unpublished."""
        self._generation[slots] += self._generation[slots] & np.uint64(1)
        self._phase[slots] = _Phase.FREE
        self.bitmap.release(slots)

    def _make_room(self, n: int, one_run: bool, now_ms: int) -> Slots:
        """Evict what it takes; whatever cannot be had is refused before anything goes."""
        self.sweep(now_ms)
        slots = self.bitmap.allocate(n, one_run=one_run)
        if slots is not None:
            return slots
        if one_run:
            self._clearable_run(n, now_ms)
        if self.bitmap.free < n:
            self._evict(self._victims(n - self.bitmap.free, now_ms), "capacity", now_ms)
            slots = self.bitmap.allocate(n, one_run=one_run)
        if slots is None:
            start = self._clearable_run(n, now_ms)
            inside = np.unique(self._extents.of_slot[start : start + n])
            self._evict(inside[inside >= 0], "run", now_ms)
            slots = self.bitmap.allocate(n, one_run=True)
        assert slots is not None, "room was made, and is not there"
        return slots

    def _victims(self, wanted: int, now_ms: int) -> Slots:
        """Old extents that have `wanted` slots between them; `PoolExhausted` when all that may go have not."""
        chosen = np.zeros(0, np.int64)
        while True:
            drawn = self._extents.of_slot[self._random.integers(0, len(self), _SAMPLE)]
            sample = np.setdiff1d(drawn[drawn >= 0], chosen)
            oldest = self._oldest(sample, now_ms)
            if not len(oldest):
                break
            # A sample's newer extents are no candidates.
            chosen = np.concatenate([chosen, oldest[: max(1, len(oldest) // _GO_AT_ONCE)]])
            enough = self._enough(chosen, wanted)
            if enough:
                return chosen[:enough]
        everyone = self._oldest(self._extents.alive(), now_ms)
        enough = self._enough(everyone, wanted)
        if not enough:
            raise self._exhausted(wanted + self.bitmap.free)
        return everyone[:enough]

    def _oldest(self, extents: Slots, now_ms: int) -> Slots:
        """Those of `extents` that may go, the longest unused first."""
        may_go = extents[self._extents.evictable(extents, now_ms)]
        ordered: Slots = may_go[np.argsort(self._extents.tick[may_go], kind="stable")]
        return ordered

    def _enough(self, extents: Slots, wanted: int) -> int:
        """How many of `extents`, from the first on, have `wanted` slots that eviction frees; 0 when all have not."""
        freed = np.cumsum(self._extents.live[extents])
        return int(np.searchsorted(freed, wanted)) + 1 if len(freed) and freed[-1] >= wanted else 0

    def _exhausted(self, n: int) -> PoolExhausted:
        return PoolExhausted(
            f"{n} blocks asked, {self.bitmap.free} of {len(self)} free, and too few may be evicted: the others are "
            "leased, pinned, held by sessions or being written"
        )

    def _clearable_run(self, n: int, now_ms: int) -> int:
        """Where a run of `n` is free or may be evicted, the tightest; `NoRun`, or `PoolExhausted` without any room."""
        everyone = self._extents.alive()
        may_go = np.zeros(len(self._extents), np.bool_)
        may_go[everyone] = self._extents.evictable(everyone, now_ms)
        of_slot = self._extents.of_slot
        clearable = self.bitmap.is_free() | ((of_slot >= 0) & may_go[of_slot] & (self._phase == _Phase.PUBLISHED))
        starts, lengths = runs_of(clearable)
        fits = np.flatnonzero(lengths >= n)
        if not len(fits):
            if int(lengths.sum()) < n:
                raise self._exhausted(n)
            raise NoRun(
                f"a run of {n} blocks asked: {self.bitmap.free} blocks are free, the longest run that is free or "
                f"evictable has {int(lengths.max())}"
            )
        return int(starts[fits[int(np.argmin(lengths[fits]))]])

    def _evict(self, extents: Slots, reason: str, now_ms: int) -> None:
        for extent in extents.tolist():
            slots = self._extents.slots(extent)
            # Resting slots are the sweeper's: they would be freed twice.
            live = slots[self._phase[slots] == _Phase.PUBLISHED]
            idle = np.full(len(live), now_ms - int(self._extents.used_ms[extent]), np.int64)
            self._evicted.append(Evicted(self._keys[live], live, idle, reason))
            self.index.remove(self._keys[live])
            self._free(live)

    def _free(self, slots: Slots) -> None:
        """Slots that nobody may read any more."""
        self._phase[slots] = _Phase.FREE
        self._slot_holds[slots] = 0
        self._extents.forget(slots)
        self.bitmap.release(slots)

    # --- publishing -----------------------------------------------------------------------------------------------

    def publish(
        self,
        slots: Slots,
        keys: Keys,
        clock: Words,
        valid: Slots,
        chains: npt.NDArray[np.uint8],
        data_sums: Words,
        *,
        flags: int = 0,
        now_ms: int,
    ) -> Words:
        """Seal and index reserved slots whose data is in place; keys absent and distinct. Their generations.

        Raises `PoolExhausted` (and takes nothing) in the rare case that the index has no room for a key.
        """
        generations = self._seal(slots, keys, clock, valid, chains, data_sums, flags)
        inserted = self.index.insert(keys, slots, generations)
        if not inserted.all():
            self.index.remove(keys[inserted])
            self.abandon(slots)
            raise PoolExhausted("the index has no room for a key: its buckets are full")
        self._extents.found(slots, now_ms, self._window_ends(keys))
        return generations

    def _window_ends(self, keys: Keys) -> Flags | None:
        """Where the next row is not the next block of the same window: a put of a long prompt is not evicted whole."""
        if self._window_blocks is None:
            return None
        _, _, index = parts(keys)
        place = keys[:, 3] & np.uint64(0xFFFFFFFF)
        return np.asarray(
            (place[1:] != place[:-1]) | (np.diff(index) != 1) | (index[1:] % self._window_blocks == 0), np.bool_
        )

    def replace(
        self,
        old: Slots,
        new: Slots,
        keys: Keys,
        clock: Words,
        valid: Slots,
        chains: npt.NDArray[np.uint8],
        data_sums: Words,
        *,
        now_ms: int,
    ) -> Words:
        """New versions of published tails: the index moves to `new`, `old` rests until its leases end."""
        generations = self._seal(new, keys, clock, valid, chains, data_sums, FLAG_TAIL)
        self._extents.found(new, now_ms)
        self._slot_holds[new] = self._slot_holds[old]
        self._extents.hold(new, self._slot_holds[old])
        self._extents.hold(old, -self._slot_holds[old])
        self._slot_holds[old] = 0
        self.index.move(keys, new, generations)
        self._rest(old)
        return generations

    def _seal(
        self,
        slots: Slots,
        keys: Keys,
        clock: Words,
        valid: Slots,
        chains: npt.NDArray[np.uint8],
        data_sums: Words,
        flags: int,
    ) -> Words:
        rows = np.zeros(len(slots), HEADER)
        generations = self._generation[slots] + np.uint64(1)
        rows["key"], rows["generation"], rows["clock"], rows["valid"] = keys, generations, clock, valid
        rows["flags"], rows["data_sum"] = flags, data_sums
        rows["chain"] = np.ascontiguousarray(chains).view("V24")[:, 0]
        rows["header_sum"] = sums(rows.view(np.uint8).reshape(len(rows), -1)[:, :SUMMED_BYTES])
        rows["generation"] = self._generation[slots]
        self.arena.headers[slots] = rows
        self.arena.headers["generation"][slots] = generations
        self._generation[slots], self._clock[slots], self._valid[slots] = generations, clock, valid
        self._keys[slots] = keys
        self._phase[slots] = _Phase.PUBLISHED
        return generations

    # --- finding and claiming ----------------------------------------------------------------------------------------

    def find(self, keys: Keys) -> Slots:
        """The slot of each key, −1 where absent."""
        return self.index.find(keys)[0]

    def generations(self, slots: Slots) -> Words:
        return self._generation[slots]

    def clocks(self, slots: Slots) -> Words:
        return self._clock[slots]

    def valid(self, slots: Slots) -> Slots:
        return self._valid[slots]

    def keys(self, slots: Slots) -> Keys:
        return self._keys[slots]

    def lease(self, slots: Slots, until_ms: int) -> None:
        """The slots' extents stay until then at least."""
        self._extents.lease(slots, until_ms + LEASE_GRACE_MS)

    def extents_of(self, slots: Slots) -> Slots:
        """The extents that published `slots` lie in, each once."""
        return self._extents.ids_of(slots)

    def lease_extents(self, extents: Slots, until_ms: int) -> None:
        """As `lease`, for `extents`."""
        leased = self._extents.leased_until
        leased[extents] = np.maximum(leased[extents], until_ms + LEASE_GRACE_MS)

    def pin_extents(self, extents: Slots, count: int) -> None:
        """`count` more pins on each of these (distinct) extents; −1: one less."""
        self._extents.pins[extents] += count

    def end_leases(self, extents: Slots) -> None:
        """Every reader that leased something in these extents has said that it is done."""
        self._extents.leased_until[extents] = 0

    def hold(self, slots: Slots) -> None:
        """One more session holds each of these (distinct) slots."""
        self._slot_holds[slots] += 1
        self._extents.hold(slots, np.ones(len(slots), np.int32))

    def unhold(self, slots: Slots) -> Slots:
        """One session less; those that no session holds any more."""
        self._slot_holds[slots] -= 1
        self._extents.hold(slots, np.full(len(slots), -1, np.int32))
        alone: Slots = slots[self._slot_holds[slots] == 0]
        return alone

    def pin(self, slots: Slots) -> None:
        self._extents.pin(slots, 1)

    def unpin(self, slots: Slots) -> None:
        self._extents.pin(slots, -1)

    def touch(self, slots: Slots, now_ms: int) -> None:
        """A use, now. The first rows count as the newest: a prefix must outlive what continues it."""
        published: Slots = slots[self._phase[slots] == _Phase.PUBLISHED]
        if len(published):
            self._reuse_gaps.append(self._extents.touch(published, now_ms))

    # --- going ------------------------------------------------------------------------------------------------------

    def remove(self, slots: Slots) -> None:
        """Published slots leave the index now, and are free when their leases end."""
        self.index.remove(self._keys[slots])
        self._extents.hold(slots, -self._slot_holds[slots])
        self._slot_holds[slots] = 0
        self._rest(slots)

    def _rest(self, slots: Slots) -> None:
        self._phase[slots] = _Phase.RESTING
        self._resting.append(slots)

    def sweep(self, now_ms: int) -> int:
        """Recycle resting slots whose leases ended; how many."""
        if not self._resting:
            return 0
        slots = np.concatenate(self._resting)
        done = self._extents.unclaimed(self._extents.of_slot[slots], now_ms)
        self._resting = [slots[~done]] if not done.all() else []
        self._free(slots[done])
        return int(done.sum())

    def drain_evicted(self) -> list[Evicted]:
        """What eviction took since the last call."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def drain_reuse_gaps_ms(self) -> Slots:
        """Time between two uses of a block, one entry a touched block, since the last call."""
        gaps, self._reuse_gaps = self._reuse_gaps, []
        return np.concatenate(gaps) if gaps else np.zeros(0, np.int64)

    # --- figures ----------------------------------------------------------------------------------------------------

    def states(self, now_ms: int) -> npt.NDArray[np.uint8]:
        """A `State` a slot."""
        states = np.where(self._phase == _Phase.RESERVED, State.RESERVED, State.FREE).astype(np.uint8)
        published = np.flatnonzero(self._phase >= _Phase.PUBLISHED)
        extents = self._extents.of_slot[published]
        states[published] = np.where(
            ~self._extents.unclaimed(extents, now_ms) | (self._phase[published] == _Phase.RESTING),
            State.LEASED,
            np.where(self._extents.holds[extents] > 0, State.USED, State.CACHED),
        )
        return states

    def fill(self) -> npt.NDArray[np.int64]:
        """Valid tokens of each published slot, −1 for the others."""
        return np.where(self._phase == _Phase.PUBLISHED, self._valid, -1)

    def free_runs(self) -> Runs:
        """Starts and lengths of the runs of free slots."""
        return self.bitmap.runs()

    @property
    def free(self) -> int:
        return self.bitmap.free
