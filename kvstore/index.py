"""Key → slot and generation: a table that the shard writes and readers on the same host map read-only.

Two choices of bucket a key (Azar et al. 1994), eight ways a bucket: a lookup looks at sixteen places and never walks,
a removal leaves no tombstone, and a thousand lookups are a few array operations. A bucket's eight tags fill one cache
line.
A reader may see an entry half written: the slot's own header, compared in full, decides.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvstore.arena import Memory
from kvstore.errors import BadRequest
from kvstore.keys import Keys, mix

WAYS = 8
_MAGIC = 0x5844_4E49_564B_0001
_HEAD_WORDS = 64
_MOST_PER_BUCKET = 3
"""Mean entries of a full table's bucket. The fullest of n buckets holds about log2(log2 n) more (< 5): it fits in 8."""

_ROOM_TO_SPARE = 3
"""With three ways free or more a key stays in its first bucket, so that most lookups end there."""

_WAY_NUMBERS = np.uint64(0x0001020304050607)
_ALL_FOUR = np.uint32(0x01010101)

Slots = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]


class Index:
    """Columns over a `Memory`: `tags [buckets, 8]`, `keys [entries, 4]`, `slots [entries]`, `generations [entries]`."""

    def __init__(self, memory: Memory, buckets: int) -> None:
        entries = buckets * WAYS
        words = memory.bytes[: self.bytes_for(buckets)].view(np.uint64)
        body = words[_HEAD_WORDS:]
        self.memory = memory
        self.buckets = buckets
        self._head = words[:_HEAD_WORDS]
        self._tags = body[:entries].reshape(buckets, WAYS)
        self._flat_tags = body[:entries]
        self._keys = body[entries : entries * 5].reshape(entries, 4)
        self._slots = body[entries * 5 : entries * 6].view(np.int64)
        self._generations = body[entries * 6 : entries * 7]

    @staticmethod
    def bytes_for(buckets: int) -> int:
        return 8 * (_HEAD_WORDS + buckets * WAYS * 7)

    @classmethod
    def create(cls, blocks: int) -> Index:
        """An empty table for at most `blocks` keys."""
        buckets = 1 << max(4, (-(-blocks // _MOST_PER_BUCKET) - 1).bit_length())
        memory = Memory.create("kv-index", cls.bytes_for(buckets), readers_cannot_write=True)
        index = cls(memory, buckets)
        index._head[1] = buckets
        index._head[0] = _MAGIC
        return index

    @classmethod
    def attach(cls, memory: Memory) -> Index:
        """Another process's table; raises `BadRequest` when the memory holds none."""
        head = memory.bytes[:16].view(np.uint64)
        buckets = int(head[1])
        if int(head[0]) != _MAGIC or buckets < 1 or cls.bytes_for(buckets) > memory.size:
            raise BadRequest("the descriptor passed as index holds no index of this version")
        return cls(memory, buckets)

    def find(self, keys: Keys) -> tuple[Slots, Words]:
        """Slot (−1: absent) and generation of each key `[n, 4]`; keys are compared in full."""
        entries, found = self._entries(keys)
        slots = np.where(found, self._slots.take(entries), -1)
        return slots, self._generations.take(entries)

    def insert(self, keys: Keys, slots: Slots, generations: Words) -> Flags:
        """Add keys that are absent and distinct; False where both buckets and their neighbours are full."""
        tags = _tags(keys)
        done = np.zeros(len(keys), np.bool_)
        pending = np.arange(len(keys))
        while len(pending):
            entry = self._free_entry(tags[pending])
            has = entry >= 0
            if not has.any():
                break
            _, first = np.unique(entry[has], return_index=True)
            rows = np.flatnonzero(has)[first]
            winners = pending[rows]
            self._write(entry[rows], tags[winners], keys[winners], slots[winners], generations[winners])
            done[winners] = True
            pending = np.delete(pending, rows)
        for row in pending.tolist():
            done[row] = self._kick(tags[row], keys[row], int(slots[row]), int(generations[row]))
        return done

    def move(self, keys: Keys, slots: Slots, generations: Words) -> None:
        """Point present keys at other slots; a reader in between sees either, or a pair that the header refutes."""
        entries, found = self._entries(keys)
        at = entries[found]
        self._generations[at] = generations[found]
        self._slots[at] = slots[found]

    def remove(self, keys: Keys) -> Flags:
        """Take keys out; whether each was there."""
        entries, found = self._entries(keys)
        at = entries[found]
        self._flat_tags[at] = 0
        self._slots[at] = -1
        return found

    def __len__(self) -> int:
        return int(np.count_nonzero(self._flat_tags))

    def _entries(self, keys: Keys) -> tuple[Slots, Flags]:
        """The entry of each key and whether it is really that key's; most are in their first bucket."""
        tags = _tags(keys)
        first, second = self._buckets(tags)
        entries, found = self._look(first, tags, keys)
        rest = np.flatnonzero(~found)
        if len(rest):
            entries[rest], found[rest] = self._look(second[rest], tags[rest], keys[rest])
        return entries, found

    def _look(self, buckets: Slots, tags: Words, keys: Keys) -> tuple[Slots, Flags]:
        hits = (self._tags.take(buckets, axis=0) == tags[:, None]).view(np.uint64)[:, 0]
        entries = buckets * WAYS + _first_way(hits)
        # Four booleans a row, seen as one word: all of them true.
        same = (self._keys.take(entries, axis=0) == keys).view(np.uint32)[:, 0] == _ALL_FOUR
        return entries, same & (hits != 0)

    def _buckets(self, tags: Words) -> tuple[Slots, Slots]:
        mask = np.uint64(self.buckets - 1)
        first = tags & mask
        return first.astype(np.int64), ((tags >> np.uint64(32)) & mask).astype(np.int64)

    def _free_entry(self, tags: Words) -> Slots:
        """A free entry of each tag: in its first bucket while that has room to spare, else in the emptier; or −1."""
        first, second = self._buckets(tags)
        free_first, free_second = self._tags[first] == 0, self._tags[second] == 0
        room = free_first.sum(axis=1)
        use_second = (room < _ROOM_TO_SPARE) & (free_second.sum(axis=1) > room)
        free = np.where(use_second[:, None], free_second, free_first)
        bucket = np.where(use_second, second, first)
        return np.where(free.any(axis=1), bucket * WAYS + free.argmax(axis=1), -1)

    def _write(self, entries: Slots, tags: Words, keys: Keys, slots: Slots, generations: Words) -> None:
        self._keys[entries] = keys
        self._generations[entries] = generations
        self._slots[entries] = slots
        self._flat_tags[entries] = tags

    def _kick(self, tag: np.uint64, key: Words, slot: int, generation: int) -> bool:
        """Make room in a full bucket by moving one resident to its other bucket."""
        one = np.asarray([tag], np.uint64)
        for bucket in self._buckets(one):
            residents = bucket[0] * WAYS + np.arange(WAYS)
            entry = self._free_entry(self._flat_tags[residents])
            movable = np.flatnonzero((entry >= 0) & (entry // WAYS != bucket[0]))
            if not len(movable):
                continue
            old, new = residents[movable[:1]], entry[movable[:1]]
            self._write(new, self._flat_tags[old], self._keys[old], self._slots[old], self._generations[old])
            self._flat_tags[old] = 0
            self._write(old, one, key[None], np.asarray([slot]), np.asarray([generation], np.uint64))
            return True
        return False


def _first_way(hits: Words) -> Slots:
    """The lowest byte of each word that is 1 (0 where none is): isolated, then turned into its number by one multiply,
    which shifts the byte that holds the number to the top."""
    lowest = hits & (~hits + np.uint64(1))
    return (lowest * _WAY_NUMBERS >> np.uint64(56)).astype(np.int64)


def _tags(keys: Keys) -> Words:
    """The key's hash; 0 marks an empty way, so it is never a tag."""
    return np.maximum(mix(keys), np.uint64(1))
