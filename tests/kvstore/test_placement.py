"""Homes of blocks: what moves when a shard joins or leaves, and what one attention call touches."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.errors import BadRequest
from kvstore.keys import Chain, block_keys, root_digest
from kvstore.layout import Layout
from kvstore.placement import KINDS, Placement, placement

LAYOUT = Layout("m", layers=8, head_groups=4, block_tokens=16, window_tokens=512)
NAMES = ["a", "b", "c", "d"]
KIND_NAMES = sorted(KINDS)


def some_keys(tokens: int = 4096, seed: int = 0, layout: Layout = LAYOUT) -> np.ndarray:
    """Keys of every layer and head group of one sequence."""
    chain = Chain(root_digest(layout.model_id), layout.block_tokens)
    chain.extend(np.random.default_rng(seed).integers(0, 50_000, tokens))
    columns = [
        block_keys(chain.digests, layer, group) for layer in range(layout.layers) for group in range(layout.head_groups)
    ]
    return np.concatenate(columns)


@pytest.mark.parametrize("kind", KIND_NAMES)
@pytest.mark.parametrize("shards", [1, 2, 3, 4, 7])
def test_loads_are_even(kind: str, shards: int) -> None:
    names = [f"s{i}" for i in range(shards)]
    loads = placement(kind, LAYOUT, names).loads()
    assert len(loads) == shards
    assert loads.max() - loads.min() <= 1 if kind != "head-group-window" else loads.max() <= 1.2 * loads.mean()


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_keys_of_a_long_context_spread_over_all_shards(kind: str) -> None:
    homes = placement(kind, LAYOUT, NAMES).home(some_keys())
    counts = np.bincount(homes, minlength=4)
    assert counts.min() > 0.8 * counts.mean()


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_adding_a_shard_moves_only_to_it(kind: str) -> None:
    before = placement(kind, LAYOUT, NAMES)
    after = before.add("e")
    keys = some_keys()
    old, new = before.home(keys), after.home(keys)
    moved = old != new
    assert set(new[moved]) == {4}
    assert 0.5 / 5 < moved.mean() < 1.5 / 5
    assert after.epoch == before.epoch + 1
    assert after.loads()[4] == before.loads().sum() // 5


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_removing_a_shard_moves_only_its_keys(kind: str) -> None:
    before = placement(kind, LAYOUT, NAMES)
    after = before.remove("b")
    keys = some_keys()
    old, new = before.home(keys), after.home(keys)
    assert np.array_equal(old != new, old == 1)
    assert after.live == (0, 2, 3)
    loads = after.loads()
    assert loads[1] == 0
    assert loads.max() - loads[[0, 2, 3]].min() <= max(1, 0.1 * loads.max())


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_a_number_never_means_two_shards(kind: str) -> None:
    changed = placement(kind, LAYOUT, NAMES).remove("b").add("e")
    assert changed.names == ("a", "b", "c", "d", "e")
    assert changed.number("e") == 4
    assert 1 not in set(changed.home(some_keys()))
    with pytest.raises(BadRequest, match=r"\+b"):
        changed.add("b")


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_another_process_computes_the_same_homes(kind: str) -> None:
    here = placement(kind, LAYOUT, NAMES).add("e").remove("a")
    there = Placement.from_json(here.as_json(), LAYOUT)
    keys = some_keys()
    assert np.array_equal(here.home(keys), there.home(keys))
    assert (there.kind, there.epoch, there.live) == (kind, 2, here.live)


def test_a_full_attention_call_of_a_head_group_touches_one_shard() -> None:
    homes = placement("head-group", LAYOUT, NAMES).home(some_keys(8192)).reshape(8, 4, -1)
    assert (homes == homes[:, :, :1]).all()
    assert (homes[:, :, 0] == np.arange(4)).all()  # a rank finds all its layers on one shard


def test_a_sliding_window_call_touches_at_most_two_shards() -> None:
    where = placement("head-group-window", LAYOUT, NAMES)
    homes = where.home(some_keys(512 * 130)).reshape(8, 4, -1)
    span = LAYOUT.window_blocks
    for first in range(0, homes.shape[2] - span, 7):
        call = homes[0, 1, first : first + span + 1]
        assert len(set(call)) <= 2
    per_window = homes[3, 2, ::span][:8]
    assert (np.diff(per_window) % 4 == 1).all()  # in order


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_all_blocks_of_a_window_have_one_home_unless_uniform(kind: str) -> None:
    homes = placement(kind, LAYOUT, NAMES).home(some_keys()).reshape(-1, LAYOUT.window_blocks)
    one_home = (homes == homes[:, :1]).all()
    assert one_home == (kind != "uniform")


@pytest.mark.parametrize(
    ("kind", "names", "changes", "message"),
    [
        ("round", NAMES, [], "no placement 'round'"),
        ("uniform", [], [], "at least one shard"),
        ("uniform", ["a", "a"], [], "must differ"),
        ("uniform", ["a"], ["-a"], "only shard"),
        ("uniform", ["a"], ["-b"], "does not fit"),
        ("uniform", ["a"], ["b"], "does not fit"),
    ],
)
def test_impossible_memberships_are_refused(kind: str, names: list[str], changes: list[str], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        placement(kind, LAYOUT, names, changes)


def test_a_key_outside_the_layout_is_refused() -> None:
    keys = block_keys([b"x" * 24], layer=8, group=0)
    with pytest.raises(BadRequest, match="8 layers"):
        placement("head-group", LAYOUT, NAMES).home(keys)


@pytest.mark.parametrize("text", ["", "[]", '{"kind": "uniform"}', '{"kind": 3, "members": ["a"], "changes": []}'])
def test_broken_json_is_one_clear_error(text: str) -> None:
    with pytest.raises(BadRequest):
        Placement.from_json(text, LAYOUT)


def test_no_keys_no_homes() -> None:
    for kind in KIND_NAMES:
        assert placement(kind, LAYOUT, NAMES).home(np.zeros((0, 4), np.uint64)).shape == (0,)
