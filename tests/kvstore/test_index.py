"""The shared index: full comparison of keys, two buckets, and another process's view of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.arena import Memory
from kvstore.errors import BadRequest
from kvstore.index import WAYS, Index


def some_keys(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**63, (n, 4)).astype(np.uint64)


def test_a_full_table_finds_every_key_and_no_other() -> None:
    index = Index.create(20_000)
    keys = some_keys(20_000)
    assert index.insert(keys, np.arange(20_000), np.full(20_000, 2, np.uint64)).all()
    slots, generations = index.find(keys)
    assert (slots == np.arange(20_000)).all()
    assert (generations == 2).all()
    assert (index.find(some_keys(20_000, seed=1))[0] == -1).all()
    assert len(index) == 20_000


def test_a_key_that_differs_in_any_word_is_another_key() -> None:
    index = Index.create(64)
    key = some_keys(1)
    index.insert(key, np.asarray([5]), np.asarray([2], np.uint64))
    for word in range(4):
        other = key.copy()
        other[0, word] ^= np.uint64(1)
        assert index.find(other)[0][0] == -1


def test_equal_tags_are_not_equal_keys() -> None:
    index = Index.create(64)
    key = some_keys(1)
    index.insert(key, np.asarray([5]), np.asarray([2], np.uint64))
    # Word 2 is no part of the hash: same tag, same bucket, and only the full comparison tells.
    twin = key.copy()
    twin[0, 2] ^= np.uint64(1 << 40)
    assert index.find(twin)[0][0] == -1


def test_full_buckets_make_room_or_say_no() -> None:
    index = Index.create(1)
    keys = some_keys(index.buckets * WAYS + 20)
    done = index.insert(keys, np.arange(len(keys)), np.full(len(keys), 2, np.uint64))
    assert not done.all()
    assert done.sum() == len(index) > 0.8 * index.buckets * WAYS
    slots, _ = index.find(keys)
    assert (slots[done] == np.flatnonzero(done)).all()
    assert (slots[~done] == -1).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["insert", "remove", "move"]), st.integers(0, 39)), max_size=60))
def test_it_agrees_with_a_dict(steps: list[tuple[str, int]]) -> None:
    index, keys, model = Index.create(40), some_keys(40), {}
    for turn, (what, i) in enumerate(steps):
        one, slot, generation = keys[i : i + 1], np.asarray([turn]), np.asarray([2 * turn], np.uint64)
        if what == "insert" and i not in model:
            assert index.insert(one, slot, generation).all()
            model[i] = turn
        elif what == "remove":
            assert bool(index.remove(one)[0]) == (i in model)
            model.pop(i, None)
        elif what == "move":
            index.move(one, slot, generation)
            if i in model:
                model[i] = turn
    slots, generations = index.find(keys)
    assert slots.tolist() == [model.get(i, -1) for i in range(40)]
    assert all(int(generations[i]) == 2 * turn for i, turn in model.items())


def test_another_mapping_sees_it_and_cannot_write() -> None:
    index = Index.create(100)
    keys = some_keys(3)
    index.insert(keys, np.arange(3), np.full(3, 2, np.uint64))
    reader = Index.attach(Memory.adopt(index.memory.fd))
    assert reader.find(keys)[0].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        reader.remove(keys)
    with pytest.raises(PermissionError):
        Memory.adopt(index.memory.fd, writable=True)


def test_memory_without_an_index_is_refused() -> None:
    memory = Memory.create("kv-no-index", 4096, readers_cannot_write=False)
    with pytest.raises(BadRequest, match="no index"):
        Index.attach(memory)
